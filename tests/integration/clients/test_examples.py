"""The sample clients run as they stand and give the same answers."""

import ast
import json
import subprocess
import sys

import cv2
import numpy as np
import pytest

from ksrv.testing import Server
from tests.support.models import write_double, write_mean
from tests.support.paths import ROOT

CLIENTS = ROOT / "examples" / "clients"
COUNT = 8 * 8 * 3


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    write_mean(root)
    write_double(root)
    with Server(root) as running:
        yield running


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    random = np.random.default_rng(3)
    paths = []
    for index, (suffix, size) in enumerate([("jpg", (40, 60)), ("png", (8, 8)), ("png", (33, 20))]):
        path = folder / f"{index}.{suffix}"
        assert cv2.imwrite(str(path), random.integers(0, 255, (*size, 3), np.uint8))
        paths.append(path)
    return paths


@pytest.fixture(scope="module")
def expected(images):
    """Each picture's expected mean: decoded, cast, resized linearly."""
    means = []
    for path in images:
        picture = cv2.imread(str(path), cv2.IMREAD_UNCHANGED).astype(np.float32)
        means.append(cv2.resize(picture, (8, 8), interpolation=cv2.INTER_LINEAR).mean((0, 1)))
    return np.array(means)


def run(*command):
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def values(lines, title):
    (line,) = [line for line in lines if line.startswith(f"{title}: mean FP32")]
    return np.array(ast.literal_eval(line[line.index("] ") + 2 :])).reshape(-1, 3)


def check(lines, expected):
    ramp = np.linspace(0, 1, COUNT).reshape(8, 8, 3).mean((0, 1))
    np.testing.assert_allclose(values(lines, "one image"), expected[:1], rtol=1e-5)
    np.testing.assert_allclose(values(lines, "batch"), expected, rtol=1e-5)
    np.testing.assert_allclose(values(lines, "raw tensor"), [ramp], rtol=1e-5)


def test_rest_client(server, images, expected):
    script = CLIENTS / "rest_client.py"
    check(run(sys.executable, script, server.url, "mean", *images), expected)


def test_grpc_client(server, images, expected):
    script = CLIENTS / "grpc_client.py"
    check(run(sys.executable, script, server.grpc, "mean", *images), expected)


def test_raw_socket_client(server, images, expected):
    script = CLIENTS / "raw_socket_client.py"
    check(run(sys.executable, script, server.http, "mean", "image", "8x8x3", *images), expected)


def test_curl(server, images, expected):
    script = CLIENTS / "curl.sh"
    lines = run("sh", script, server.url, "mean", "image", COUNT, "1,8,8,3", *images)
    means = [
        np.array(json.loads(line)["outputs"][0]["data"]).reshape(-1, 3) for line in lines if line
    ]
    for found, wanted in zip(means, [expected[:1], expected, np.zeros((1, 3))], strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_refused_request_is_reported(server, images):
    script = CLIENTS / "rest_client.py"
    done = subprocess.run(
        [sys.executable, str(script), server.url, "double", str(images[0])],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode != 0
    assert done.stderr.startswith("400: ")


def test_a_repository_of_triton(tmp_path):
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    folder = ROOT / "examples" / "triton"
    run(sys.executable, folder / "make_repository.py", tmp_path / "colours")
    with Server(tmp_path / "colours") as running:
        lines = run(sys.executable, folder / "client.py", running.http)
    assert [line.split()[0] for line in lines] == ["red", "green", "blue"]
    assert sum(float(line.split()[1]) for line in lines) == pytest.approx(1, abs=0.01)
