"""Model files of TorchServe's base handler: each format, and every form of `pt2`."""

import json
import logging

import numpy as np
import onnx
import pytest
import torch
from safetensors.torch import save_file

from ksrv.handlers.runner import HandlerLoadError
from ksrv.request import ExecutorInputs, RequestPart, Tensor
from tests.support.model_files.format_files import (
    LAYERS,
    NET,
    compiled_package,
    network,
    shared_object,
    state_of,
    write_onnx,
)

pytestmark = pytest.mark.timeout(900)  # one has the network compiled

HANDLER = """
import torch
from ts.torch_handler.base_handler import BaseHandler

class Own(BaseHandler):
    def preprocess(self, data):
        return torch.tensor([row["body"] for row in data])
"""
ARRAY = np.random.default_rng(3).normal(size=(3, 4)).astype(np.float32)


def answer_of(runner):
    tensor = Tensor("x", "FP32", ARRAY.shape, ARRAY)
    outcome = runner.run(ExecutorInputs({"x": tensor}, 3, [RequestPart(slice(0, 3), "id")]))
    assert not outcome.failures, outcome.failures
    return np.float32([json.loads(element) for element in outcome.tensors[0].data])


def check(runner):
    with torch.inference_mode():
        want = network()(torch.from_numpy(ARRAY)).numpy()
    np.testing.assert_allclose(answer_of(runner), want, atol=1e-5, rtol=0)


def eager(tmp_path, suffix=".pth"):
    path = tmp_path / f"net{suffix}"
    if suffix == ".safetensors":
        save_file(state_of(network()), path)
    else:
        torch.save(state_of(network()), path)
    return {path.name: path.read_bytes(), "net.py": NET.encode(), "layers.py": LAYERS.encode()}


@pytest.mark.parametrize("suffix", [".pth", ".pt", ".bin", ".safetensors"])
def test_class_and_weights(ts_runner, tmp_path, suffix):
    files = eager(tmp_path, suffix)
    manifest = {"serializedFile": f"net{suffix}", "modelFile": "net.py"}
    check(ts_runner(HANDLER, files=files, manifest=manifest))


def test_onnx_is_run_by_the_default_inference(ts_runner, tmp_path):
    """TorchServe's session is not callable, so that its default inference fails."""
    write_onnx(network(), tmp_path / "net.onnx")
    onnx.checker.check_model(str(tmp_path / "net.onnx"))
    files = {"net.onnx": (tmp_path / "net.onnx").read_bytes()}
    made = ts_runner(HANDLER, files=files, manifest={"serializedFile": "net.onnx"})
    check(made)
    assert type(made._service.model).__name__ == "InferenceSession"


def test_compiled_shared_object(ts_runner):
    files = {"net.so": shared_object(compiled_package())}
    manifest = {"serializedFile": "net.so"}
    config = {"pt2": {"export": {"aot_compile": True}}}
    check(ts_runner(HANDLER, files=files, manifest=manifest, archive={"config": config}))


def test_shared_object_needs_its_key(ts_runner):
    with pytest.raises(HandlerLoadError, match=r"a \.so with pt2\.export\.aot_compile"):
        ts_runner(HANDLER, files={"net.so": b""}, manifest={"serializedFile": "net.so"})


@pytest.mark.parametrize(
    ("pt2", "compiled", "said"),
    [
        (None, False, ""),
        ({"compile": {"enable": True, "backend": "aot_eager"}}, True, ""),
        ({"compile": {"enable": True, "backend": "eager", "dynamic": True}}, True, ""),
        ({"compile": {"enable": False, "backend": "eager"}}, False, ""),
        ({"export": {"aot_compile": True}}, False, ""),
        ("eager", True, "deprecated"),
        ({"backend": "eager"}, True, "deprecated"),
        ("nope", False, "the model stays eager: unknown backend 'nope'"),
    ],
)
def test_every_form_of_pt2(ts_runner, tmp_path, caplog, pt2, compiled, said):
    torch._dynamo.reset()
    caplog.set_level(logging.WARNING, logger="ksrv.dialects.torchserve")
    config = {"pt2": pt2}
    manifest = {"serializedFile": "net.pth", "modelFile": "net.py"}
    made = ts_runner(HANDLER, files=eager(tmp_path), manifest=manifest, archive={"config": config})
    check(made)
    assert (type(made._service.model).__name__ == "OptimizedModule") == compiled
    assert said in caplog.text
    assert made._service.model_yaml_config == {"pt2": pt2}  # as it was


@pytest.mark.parametrize("pt2", [3, ["eager"], {"backend": "eager", "wrong": 1}])
def test_pt2_of_another_form_fails_the_model(ts_runner, tmp_path, pt2):
    manifest = {"serializedFile": "net.pth", "modelFile": "net.py"}
    with pytest.raises(HandlerLoadError, match="ValueError: pt2"):
        ts_runner(
            HANDLER, files=eager(tmp_path), manifest=manifest, archive={"config": {"pt2": pt2}}
        )
