"""The models of examples/pretrained (docs/pretrained.md) answer as their packages do: as JSON, in binary, as a form, over gRPC, for 16 clients."""

import base64
import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor

import cv2
import numpy as np
import pytest
import requests

from ksrv.client import Client
from ksrv.testing import Server
from tests.support.paths import ROOT

FOLDER = ROOT / "examples/pretrained"
sys.path.insert(0, str(FOLDER))
import packages  # noqa: E402
import prepare  # noqa: E402

pytest.importorskip("matplotlib", reason="make test-packages installs it: it has a photograph")
CLIENTS = 16


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server of the models whose packages are installed."""
    root = tmp_path_factory.mktemp("models")
    if not prepare.prepare(root):
        pytest.skip("make test-packages installs the packages")
    with pytest.MonkeyPatch.context() as patch, Server(root, start_timeout=600) as running:
        patch.setenv("MODELS", str(root))
        yield running


def responses(url, inputs):
    """Yield the answers to tensors in JSON, and to a form if it can have the inputs."""
    datatypes = {
        one["name"]: one["datatype"] for one in requests.get(url, timeout=60).json()["inputs"]
    }
    tensors, fields = [], {}
    for name, value in inputs.items():
        is_file = isinstance(value, bytes)
        array = np.atleast_1d({"b64": base64.b64encode(value).decode()} if is_file else value)
        kind = "BYTES" if is_file else datatypes[name]
        shown = {"name": name, "datatype": kind, "shape": array.shape, "data": array.tolist()}
        tensors.append(shown)
        fields[name] = (name, value) if is_file else (None, str(value))
    yield requests.post(f"{url}/infer", json={"inputs": tensors}, timeout=300)
    if not any(isinstance(value, np.ndarray) for value in inputs.values()):
        yield requests.post(f"{url}/infer", files=fields, timeout=300)


def outputs_of(response):
    """Return the outputs of an answer in JSON, or the only file of an answer."""
    assert response.status_code == 200, response.text
    if not response.headers["Content-Type"].startswith("application/json"):
        return {"output": np.array([response.content], object)}
    found = {}
    for one in response.json()["outputs"]:
        values = one["data"]
        if one["datatype"] == "BYTES":
            is_file = "content_type" in one.get("parameters", {})
            values = [base64.b64decode(text) if is_file else text.encode() for text in values]
        kind = object if one["datatype"] == "BYTES" else None
        found[one["name"]] = np.array(values, kind).reshape(one["shape"])
    return found


def check(name, found, own):
    """Compare the outputs of a model with what its package returned."""
    if name == "nsfw":
        scores = dict(zip(found["label"][0], found["score"][0], strict=True))
        assert scores == {key.encode(): pytest.approx(one, abs=1e-5) for key, one in own.items()}
    elif name == "nude":  # the package pads the picture before it resizes it
        (((left, top, right, bottom),),) = found["boxes"]
        ((label, score, *box),) = own
        assert (found["label"].item().decode(), found["score"].item()) == (
            label,
            pytest.approx(score, abs=0.01),
        )
        np.testing.assert_allclose([left, top, right - left, bottom - top], box, atol=3)
    elif name == "faces":  # MediaPipe resizes in another way, and merges boxes by their scores
        ((score, *box),) = own
        assert found["score"].item() == pytest.approx(score, abs=0.05)
        np.testing.assert_allclose(found["boxes"][0, 0], box, atol=5)
    elif name == "ocr":  # a row of six lines is a pixel wider
        lines = json.loads(found["output"].item())
        assert [(box, text) for box, text, _ in lines] == [(box, text) for box, text, _ in own]
        np.testing.assert_allclose(
            [line[2] for line in lines], [line[2] for line in own], atol=0.03
        )
    elif name == "notes":
        for key, values in own.items():
            np.testing.assert_allclose(found[key][0], values, atol=2e-6)
    elif name == "cutout":
        mask = cv2.imdecode(np.frombuffer(found["output"].item(), np.uint8), cv2.IMREAD_GRAYSCALE)
        np.testing.assert_allclose(mask / 255, own, atol=0.02)
    elif isinstance(own, dict):
        assert json.loads(found["output"].item()) == own
    elif isinstance(own, str | bytes):
        assert found["output"].item() == (own.encode() if isinstance(own, str) else own)
    else:
        (values,) = (
            found[key]
            for key in ("output", "embedding", "probabilities", "predict_proba")
            if key in found
        )
        np.testing.assert_allclose(values, np.atleast_2d(own), atol=1e-6)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", packages.QUESTIONS)
def test_a_model_answers_as_its_package(server, name):
    with (
        Client(server.url, timeout=300) as rest,
        Client(f"grpc://{server.grpc}", timeout=300) as grpc,
    ):
        if name not in {model["name"] for model in rest.index()}:
            pytest.skip(f"the package of {name} is not installed")
        question = packages.QUESTIONS[name]()
        own = getattr(packages, name)()(**question)
        for client in (rest, grpc):
            check(name, client.infer(name, question), own)
        for response in responses(f"{server.url}/v2/models/{name}", question):
            check(name, outputs_of(response), own)
        with ThreadPoolExecutor(CLIENTS) as threads:
            for answer in threads.map(lambda _: rest.infer(name, question), range(CLIENTS)):
                check(name, answer, own)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["voice", "wake"])
def test_sequences_beside_each_other_have_the_packages_scores(server, name):
    random = np.random.default_rng(0)
    if name == "voice":  # 64 samples of the part before, and 512 new samples
        streams = np.pad(
            random.normal(size=(CLIENTS, 8 * 512)).astype(np.float32), ((0, 0), (64, 0))
        )
        sounds = np.stack([streams[:, at : at + 576] for at in range(0, 8 * 512, 512)], axis=1)
    else:
        sounds = (1000 * random.normal(size=(CLIENTS, 8, 1280))).astype(np.int16)
    with (
        Client(server.url, timeout=120) as rest,
        Client(f"grpc://{server.grpc}", timeout=120) as grpc,
    ):
        if name not in {model["name"] for model in rest.index()}:
            pytest.skip(f"the package of {name} is not installed")

        def listen(at):
            answers = []
            for number, part in enumerate(sounds[at]):
                start = {"sequence_id": f"{name} {at}", "sequence_start": number == 0}
                answer = (rest, grpc)[at % 2].infer(name, part[None], parameters=start)
                answers.append(next(iter(answer.values())).item())
            return answers

        with ThreadPoolExecutor(CLIENTS) as threads:
            found = list(threads.map(listen, range(CLIENTS)))
        for sound, scores in zip(sounds, found, strict=True):
            package = getattr(packages, name)()
            own = [np.asarray(package(samples=part[None])).item() for part in sound]
            # openwakeword begins with noise.
            np.testing.assert_allclose(scores, own, atol=1e-5 if name == "voice" else 1e-3)


def test_the_table_has_the_lines_of_the_handlers():
    lines = {}
    for row in re.findall(r"^\| `.*", (ROOT / "docs/pretrained.md").read_text(), re.MULTILINE):
        folders, _, _, before, now, *_ = row.strip("| ").split(" | ")
        lines[int(before), folders] = int(now)
        files = [
            path for name in re.findall("`(.+?)`", folders) for path in (FOLDER / name).glob("*.py")
        ]
        code = [line.strip() for path in files for line in path.read_text().splitlines()]
        assert sum(bool(line) and not line.startswith("#") for line in code) == int(now), folders
    assert sum(lines.values()) <= sum(before for before, _ in lines) / 2
