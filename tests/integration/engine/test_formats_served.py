"""One model served in every format, with and without torch.compile: answers equal within 1e-5."""

import numpy as np
import pytest
import requests

from ksrv.client import Client
from ksrv.testing import Server
from tests.support.model_files.format_files import (
    LAYERS,
    NET,
    compiled_package,
    exported,
    network,
    shared_object,
    state_of,
    write_onnx,
)
from tests.support.wait_until import wait_until

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.timeout(900),  # compiling the package and the models takes the longest
]

FORMATS = ("script", "state", "safetensors", "onnx", "export", "package", "object")
COMPILE = "pt2: {compile: {enable: true, backend: inductor, dynamic: true}}\n"
TENSORS = (
    "inputs: [{name: x, datatype: FP32, shape: [-1, 4]}]\n"
    "outputs: [{name: y, datatype: FP32, shape: [-1, 3]}]\n"
    "batching: {max_batch_size: 4}\n"
)
BROKEN = """
import torch

def broken(graph, inputs):
    raise RuntimeError("no compiler today")

if "broken_today" not in torch.compiler.list_backends(exclude_tags=()):
    torch._dynamo.register_backend(broken, name="broken_today")
"""


def write(folder, form, net, package):
    """Write the model's file in a format; return the lines of model.yaml that name it."""
    match form:
        case "script":
            torch.jit.script(net).save(str(folder / "net.pt"))
            return "model: net.pt\n"
        case "state":
            torch.save(state_of(net), folder / "net.pth")
        case "safetensors":
            safetensors.save_file(state_of(net), folder / "net.safetensors")
        case "onnx":
            write_onnx(net, folder / "net.onnx")
            return "model: net.onnx\n"
        case "export":
            torch.export.save(exported(net), folder / "net.pt2")
            return "model: net.pt2\n"
        case "package":
            (folder / "net.pt2").write_bytes(package.read_bytes())
            return "model: net.pt2\n"
        case "object":
            (folder / "net.so").write_bytes(shared_object(package))
            return "model: net.so\n"
    (folder / "net.py").write_text(NET)
    (folder / "layers.py").write_text(LAYERS)
    [file] = folder.glob("net.[ps][ta]*")
    return f"model: {file.name}\nclass: net.py:Net\n"


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    top = tmp_path_factory.mktemp("formats")
    net = network()
    package = compiled_package()
    models = top / "models"
    for form in FORMATS:
        for name, lines in ((form, ""), (f"{form}-compiled", COMPILE)):
            folder = models / name
            folder.mkdir(parents=True)
            lines += write(folder, form, net, package)
            (folder / "model.yaml").write_text(lines + TENSORS)
    with Server(models, grpc="off", start_timeout=600) as server:
        yield server


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("compiled", ["", "-compiled"])
@pytest.mark.parametrize("rows", [1, 3])
def test_answers_are_equal(served, form, compiled, rows):
    array = np.random.default_rng(rows).normal(size=(rows, 4)).astype(np.float32)
    with torch.inference_mode():
        want = network()(torch.from_numpy(array)).numpy()
    with Client(served.url) as client:
        found = client.infer(f"{form}{compiled}", {"x": array})["y"]
    np.testing.assert_allclose(found, want, atol=1e-5, rtol=0)


def test_only_eager_modules_are_compiled_as_the_log_reports(served):
    for form in FORMATS:
        told = f"the model {form}-compiled stays eager" in served.log
        assert told == (form not in ("state", "safetensors")), form


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    """Models whose compilation fails in the warm-up: optional, required, in either executor."""
    models = tmp_path_factory.mktemp("broken") / "models"
    compile = "{enable: true, backend: broken_today}"
    for name, required, executor in (
        ("optional", "false", "inline"),
        ("inline", "true", "inline"),
        ("process", "true", "process"),
    ):
        folder = models / name
        folder.mkdir(parents=True)
        (folder / "layers.py").write_text(LAYERS)
        (folder / "net.py").write_text(BROKEN + NET)
        (folder / "model.yaml").write_text(
            f"class: net.py:Net\nexecutor: {executor}\n{TENSORS}"
            f"pt2: {{compile: {compile}, required: {required}}}\n"
        )
    with Server(models, grpc="off", wait_ready=False) as server:
        wait_until(lambda: "models loaded" in server.log, 600, tell=lambda: server.log)
        yield server


def test_failed_compilation_is_logged_once_and_the_model_serves(broken):
    assert broken.get("/v2/models/optional/ready")[0] == 200
    with Client(broken.url) as client:
        client.infer("optional", {"x": np.zeros((2, 4), np.float32)})
    assert broken.log.count("the model optional stays eager") == 1


@pytest.mark.parametrize("name", ["inline", "process"])
def test_failed_compilation_that_is_required_fails_the_model(broken, name):
    states = requests.post(f"{broken.url}/v2/repository/index", timeout=30).json()
    [state] = [one for one in states if one["name"] == name]
    assert state["state"] == "UNAVAILABLE"
    assert "torch.compile failed and is required" in state["reason"]
    assert "no compiler today" in state["reason"]
    assert broken.get("/v2/health/ready")[0] == 503
