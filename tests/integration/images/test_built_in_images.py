"""The built-in image handlers on a server: images of every kind, and one bad item among eight."""

import io
import json
import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import requests

from ksrv.testing import Server
from tests.support.images import files

torch = pytest.importorskip("torch")
Image = pytest.importorskip("PIL.Image")
ImageOps = pytest.importorskip("PIL.ImageOps")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

HEADER = b'{"inputs":[{"name":"image","shape":[1],"datatype":"BYTES"}]}'
ROWS = """
from ksrv import BaseHandler

class Rows(BaseHandler):
    def inference(self, x):
        batch = self.context.batch
        for row in range(batch.rows):
            if x[row].sum() < 0:
                batch.fail(row, f"the sum is {x[row].sum():g}", 422)
        return {"y": x * 2, "together": [batch.rows] * batch.rows}
"""


class Segmenter(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.c = torch.nn.Conv2d(3, 4, 1)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"out": self.c(x)}


class Detector(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> list[dict[str, torch.Tensor]]:
        out: list[dict[str, torch.Tensor]] = []
        for image in x:
            corner = image.mean(dim=1).mean(dim=1)
            box = torch.cat([corner, image.amax().reshape(1)]).reshape(1, 4)
            found = {"boxes": box, "labels": torch.tensor([1]), "scores": torch.tensor([0.9])}
            out.append(found)
        return out


def classifier():
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 7, 4),
        torch.nn.AdaptiveAvgPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(16, 5),
    )


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    models = tmp_path_factory.mktemp("built-in") / "models"
    torch.manual_seed(1)
    classes = classifier()
    eight = "batching: {max_batch_size: 8, max_delay_ms: 60000}\n"
    for name, handler, module, lines in (
        ("classifier", "image_classifier", classes, ""),
        ("segmenter", "image_segmenter", Segmenter(), ""),
        ("detector", "object_detector", Detector(), ""),
        ("eight", "image_classifier", classes, eight),
    ):
        folder = models / name
        folder.mkdir(parents=True)
        torch.jit.script(module.eval()).save(str(folder / "m.pt"))
        (folder / "model.yaml").write_text(f"handler: {handler}\nmodel: m.pt\n{lines}")
    (models / "rows").mkdir()
    (models / "rows" / "handler.py").write_text(ROWS)
    (models / "rows" / "model.yaml").write_text(
        "handler: handler.py\ninputs: [{name: x, datatype: FP32, shape: [-1, 3]}]\n" + eight
    )
    with Server(models, grpc="off", start_timeout=200) as server:
        yield server


def picture(width=400, height=300):
    y, x = np.mgrid[0:height, 0:width]
    planes = [5 * x + 3 * y, x * y // 16, 200 * ((x // 8 + y // 8) % 2) + (x + 2 * y) % 56]
    return Image.fromarray((np.stack(planes, axis=-1) % 256).astype(np.uint8))


def encoded(image, kind="PNG", **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def turned(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(picture(), "JPEG", quality=92, exif=exif)


def see_through():
    alpha = Image.fromarray(np.tile(np.arange(400) % 256, (300, 1)).astype(np.uint8))
    image = picture().convert("RGBA")
    image.putalpha(alpha)
    return image


KINDS = {
    "grey png": encoded(picture().convert("L")),
    "grey jpeg": encoded(picture().convert("L"), "JPEG", quality=90),
    "grey with alpha": encoded(picture().convert("LA")),
    "rgba": encoded(see_through()),
    "palette": encoded(picture().quantize(32)),
    "palette with transparency": encoded(picture().quantize(32), transparency=3),
    "one bit": encoded(picture().convert("1")),
    **{f"orientation {number}": turned(number) for number in range(1, 9)},
}


def ask(server, model, content):
    headers = {"Inference-Header-Content-Length": str(len(HEADER))}
    url = f"{server.url}/v2/models/{model}/infer"
    return requests.post(url, HEADER + content, headers=headers, timeout=60)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model", ["classifier", "segmenter", "detector"])
def test_every_kind_of_image_is_the_rgb_image_that_people_see(served, model, kind):
    content = KINDS[kind]
    plain = ImageOps.exif_transpose(Image.open(io.BytesIO(content))).convert("RGB")
    found, wanted = ask(served, model, content), ask(served, model, encoded(plain))
    assert (found.status_code, wanted.status_code) == (200, 200), found.text
    assert found.json()["outputs"] == wanted.json()["outputs"]


def test_one_bad_file_among_eight_fails_alone(served):
    """The batch leaves when it is full: nobody waits for the delay."""
    good = [encoded(picture(300 + 10 * number, 280)) for number in range(7)]
    corrupt = files.damaged_png(300, 280)  # only its decoder finds out, in the batch
    alone = [ask(served, "classifier", content).json()["outputs"] for content in good]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda one: ask(served, "eight", one), [*good, corrupt]))
    assert [answer.status_code for answer in answers] == [200] * 7 + [400]
    assert "image" in answers[-1].json()["error"]
    for answer, expected in zip(answers[:7], alone, strict=True):
        for found, wanted in zip(answer.json()["outputs"], expected, strict=True):
            if found["datatype"] == "FP32":
                assert found["data"] == pytest.approx(wanted["data"], abs=1e-6)
            elif found["name"] != "output":  # the same numbers as text
                assert found == wanted


def test_one_bad_row_among_eight_fails_alone_and_the_others_are_exact(served):
    rows = [[float(number), 0.25, 0.5] for number in range(7)] + [[-9.0, 0.0, 0.0]]

    def infer(row):
        tensor = {"name": "x", "datatype": "FP32", "shape": [1, 3], "data": row}
        url = f"{served.url}/v2/models/rows/infer"
        return requests.post(url, json={"inputs": [tensor]}, timeout=60)

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(infer, rows))
    assert [answer.status_code for answer in answers] == [200] * 7 + [422]
    assert answers[-1].json() == {"error": "the sum is -9"}
    for row, answer in zip(rows, answers[:7], strict=False):
        outputs = {one["name"]: one["data"] for one in answer.json()["outputs"]}
        assert outputs["y"] == [2 * value for value in row]
        assert [json.loads(one) for one in outputs["together"]] == [8]


def test_explanation_beside_infer(served):
    headers = {"Inference-Header-Content-Length": str(len(HEADER))}
    url = f"{served.url}/v2/models/classifier/explain"
    answer = requests.post(url, HEADER + encoded(picture()), headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text
    [output] = answer.json()["outputs"]
    assert (output["name"], output["datatype"]) == ("attributions", "FP32")
    assert output["shape"] == [1, 3, 224, 224]
    assert any(output["data"])
    assert {"preprocess", "explain"} <= set(
        re.findall(r"(\w+);dur", answer.headers["Server-Timing"])
    )
    refused = requests.post(
        f"{served.url}/v2/models/detector/explain",
        HEADER + encoded(picture()),
        headers=headers,
        timeout=60,
    )
    assert refused.status_code == 400
    assert "has no explanations" in refused.json()["error"]
