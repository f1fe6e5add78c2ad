"""The built-in image handlers on a server: images of every kind, and one bad item among eight."""

import io
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests

from ksrv.testing import Server
from tests.support.images import files

torch = pytest.importorskip("torch")
Image = pytest.importorskip("PIL.Image")
ImageOps = pytest.importorskip("PIL.ImageOps")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

HEADER = b'{"inputs":[{"name":"image","shape":[1],"datatype":"BYTES"}]}'


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
    with Server(models, grpc="off", start_timeout=200) as server:
        yield server


KINDS = {
    "grey png": files.png(300, 400, "L"),
    "grey jpeg": files.jpeg(300, 400, "L"),
    "grey with alpha": files.png(300, 400, "LA"),
    "rgba": files.rgba_png(300, 400),
    "palette": files.png(300, 400, "P"),
    "palette with transparency": files.png(300, 400, "P", transparency=3),
    "one bit": files.png(300, 400, "1"),
    **{f"orientation {number}": files.oriented(300, 400, number) for number in range(1, 9)},
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
    found, wanted = ask(served, model, content), ask(served, model, files.encode(plain, "PNG"))
    assert (found.status_code, wanted.status_code) == (200, 200), found.text
    assert found.json()["outputs"] == wanted.json()["outputs"]


def test_one_bad_file_among_eight_fails_alone(served):
    """The batch leaves when it is full: nobody waits for the delay."""
    good = [files.png(280, 300 + 10 * number) for number in range(7)]
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


def test_explanation_beside_infer(served):
    headers = {"Inference-Header-Content-Length": str(len(HEADER))}
    url = f"{served.url}/v2/models/classifier/explain"
    answer = requests.post(url, HEADER + files.png(300, 400), headers=headers, timeout=60)
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
        HEADER + files.png(300, 400),
        headers=headers,
        timeout=60,
    )
    assert refused.status_code == 400
    assert "has no explanations" in refused.json()["error"]
