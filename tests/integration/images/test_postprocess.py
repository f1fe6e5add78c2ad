"""Declared postprocessing on a server: the same answer over REST, binary, forms and gRPC, alone and from 16 clients."""

import json
from concurrent.futures import ThreadPoolExecutor

import cv2
import numpy as np
import pytest
import requests
from click.testing import CliRunner

from ksrv.cli.main import main
from ksrv.client import Client
from ksrv.testing import Server
from tests.support.model_files.onnx_models import write_graph

LABELS = ["cat", "dog"]
IMAGE = "image: {color: RGB, channels: convert, resize: letterbox, scale: 255, model_layout: NCHW}"
SETTINGS = """
model: m.onnx
labels: labels.txt
batching: {{max_batch_size: 8, max_delay_ms: 5}}
inputs: [{{name: images, datatype: FP32, shape: [-1, 64, 64, 3], {image}}}]
postprocess:
  - nms: {{of: found, format: yolo, score: 0.2}}
  - softmax: {{of: scores}}
  - top_k: {{of: scores, k: 1, to: best}}
  - mask: {{of: light, threshold: 0.5}}
"""
DETECTIONS = np.float32([  # centre x, centre y, width, height, scores of cat and dog, for a white picture
    [32, 32, 20, 10, 0.9, 0.1],
    [33, 32, 20, 10, 0.8, 0.1],
    [32, 32, 20, 10, 0.1, 0.7],
    [10, 32, 8, 8, 0.3, 0.25],
]).T[None]  # fmt: skip


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A model whose scores and class depend on how bright the whole picture is; its mask is the red channel."""
    folder = tmp_path_factory.mktemp("steps") / "models" / "bright"
    folder.mkdir(parents=True)
    write_graph(
        folder / "m.onnx",
        [
            ("ReduceMean", ["images"], ["mean"], {"axes": [1, 2, 3], "keepdims": 1}),
            ("Reshape", ["mean", "flat"], ["level"], {}),
            ("Reshape", ["mean", "three"], ["level3"], {}),
            ("Sub", ["level3", "one"], ["dark"], {}),
            ("Mul", ["dark", "only_scores"], ["less"], {}),
            ("Add", ["detections", "less"], ["found"], {}),
            ("Mul", ["level", "weights"], ["scores"], {}),
            ("Slice", ["images", "zero", "first", "channel"], ["light"], {}),
        ],
        {"images": ("FP32", ("N", 3, 64, 64))},
        {
            "found": ("FP32", ("N", 6, 4)), "scores": ("FP32", ("N", 2)),
            "light": ("FP32", ("N", 1, 64, 64)),
        },
        {
            "flat": np.int64([-1, 1]), "three": np.int64([-1, 1, 1]), "one": np.float32(1),
            "only_scores": np.float32([0, 0, 0, 0, 1, 1]).reshape(1, 6, 1),
            "detections": DETECTIONS, "weights": np.float32([[-1, 3]]),
            "zero": np.int64([0]), "first": np.int64([1]), "channel": np.int64([1]),
        },
    )  # fmt: skip
    (folder / "labels.txt").write_text("\n".join(LABELS))
    (folder / "model.yaml").write_text(SETTINGS.format(image=IMAGE))
    return folder.parent


@pytest.fixture(scope="module")
def server(models):
    with Server(models, start_timeout=120) as server:
        yield server


def png(pixels):
    return cv2.imencode(".png", pixels)[1].tobytes()


def expected(pixels):
    """The answer, by loops over what the model returns for one picture of half the row's height."""
    row = np.full((64, 64, 3), 114, np.float32)
    row[16:48] = pixels
    mean = float(row.mean()) / 255
    boxes = []
    for x, y, w, h, *scores in DETECTIONS[0].T.tolist():
        kind = int(scores[1] > scores[0])
        score = scores[kind] + mean - 1
        box = [x - w / 2, y - h / 2 - 16, x + w / 2, y + h / 2 - 16]
        if score >= 0.2 and not any(kind == k and abs(box[0] - b[0]) < 2 for _, k, b in boxes):
            boxes.append((score, kind, box))
    return {
        "boxes": [box for _, _, box in boxes],
        "class": [kind for _, kind, _ in boxes],
        "label": [LABELS[kind].encode() for _, kind, _ in boxes],
        "score": [score for score, _, _ in boxes],
        "count": len(boxes),
        "best_class": [1],
        "best_score": [1 / (1 + np.exp(-4 * mean))],
        "best_label": [b"dog"],
        "light": np.where(pixels[..., 2] >= 128, 255, 0),
    }


def check(answer, pixels):
    wanted = expected(pixels)
    assert set(answer) == set(wanted)
    count = wanted["count"]
    for name, value in wanted.items():
        found = answer[name][0]
        if name == "light":
            mask = cv2.imdecode(np.frombuffer(found, np.uint8), cv2.IMREAD_UNCHANGED)
            np.testing.assert_array_equal(mask, value)
        elif name in ("boxes", "score", "best_score"):
            np.testing.assert_allclose(
                found[:count] if name != "best_score" else found, value, 1e-4, 1e-4
            )
        elif name == "count":
            assert found == value
        else:
            assert found.tolist()[: len(value)] == value


def pixels_of(level):
    pixels = np.full((32, 64, 3), level, np.uint8)
    pixels[:, :32, 2] = 255
    return pixels


LEVELS = (0, 60, 200, 255)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("address", ["url", "grpc"])
def test_answers_are_those_of_loops(server, address, level):
    pixels = pixels_of(level)
    url = server.url if address == "url" else f"grpc://{server.grpc}"
    with Client(url) as client:
        check(client.infer("bright", {"images": [png(pixels)]}), pixels)


def test_16_clients_get_the_answers_of_one(server):
    def ask(number):
        pixels = pixels_of(LEVELS[number % 4])
        with Client(server.url) as client:
            for _ in range(3):
                check(client.infer("bright", {"images": [png(pixels)]}), pixels)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(ask, range(16)))


def test_forms_and_json_have_the_same_answer(server):
    pixels = pixels_of(255)
    url = f"{server.url}/v2/models/bright/infer"
    answer = requests.post(url, files={"images": ("a.png", png(pixels), "image/png")}, timeout=60)
    assert answer.status_code == 200, answer.text
    outputs = {one["name"]: one for one in answer.json()["outputs"]}
    wanted = expected(pixels)
    assert outputs["label"]["data"] == [one.decode() for one in wanted["label"]]
    np.testing.assert_allclose(np.reshape(outputs["boxes"]["data"], (-1, 4)), wanted["boxes"], 1e-4)
    assert outputs["light"]["datatype"] == "BYTES"


def test_metadata_and_openapi_describe_the_outputs_of_the_steps(server):
    described = requests.get(f"{server.url}/v2/models/bright", timeout=60).json()["outputs"]
    assert {one["name"]: (one["datatype"], one["shape"]) for one in described} == {
        "boxes": ("FP32", [-1, -1, 4]),
        "class": ("INT64", [-1, -1]),
        "score": ("FP32", [-1, -1]),
        "label": ("BYTES", [-1, -1]),
        "count": ("INT32", [-1]),
        "best_class": ("INT64", [-1, 1]),
        "best_score": ("FP32", [-1, 1]),
        "best_label": ("BYTES", [-1, 1]),
        "light": ("BYTES", [-1]),
    }
    text = json.dumps(requests.get(f"{server.url}/openapi.json", timeout=60).json())
    assert "best_label" in text


def test_check_shows_the_outputs_of_the_steps(models):
    shown = CliRunner().invoke(main, ["check", str(models)])
    assert shown.exit_code == 0, shown.output
    for output in ("boxes FP32[-1,-1,4]", "best_label BYTES[-1,1]", "light BYTES[-1]"):
        assert output in shown.output


@pytest.mark.parametrize("executor", ["inline", "process"])
def test_input_without_values_gets_400(tmp_path, executor):
    steps = {
        "softmax": [2, 0],
        "argmax": [2, 0],
        "top_k": [2, 0],
        "ctc": [1, 4, 0],
        "mask": [1, 0, 4],
    }
    keys = {"ctc": "{alphabet: abc}"}
    for step, shape in steps.items():
        (tmp_path / step).mkdir()
        (tmp_path / step / "handler.py").write_text("def inference(x):\n    return {'y': x}\n")
        sizes = ", ".join(["-1"] * len(shape))
        (tmp_path / step / "model.yaml").write_text(
            f"handler: handler.py\nexecutor: {executor}\npostprocess: [{{{step}: {keys.get(step, {})}}}]\nwarmup: false\n"
            f"inputs: [{{name: x, datatype: FP32, shape: [{sizes}]}}]\n"
        )
    with Server(tmp_path) as server:
        for step, shape in steps.items():
            tensor = {"name": "x", "datatype": "FP32", "shape": shape, "data": []}
            answer = requests.post(
                f"{server.url}/v2/models/{step}/infer", json={"inputs": [tensor]}
            )
            assert (answer.status_code, answer.json()["error"]) == (
                400,
                "the request leaves 'y' without values",
            )
