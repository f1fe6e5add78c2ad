"""Faults of a handler that the warm-up with zeros finds before its first request."""

import numpy as np
import pytest

from ksrv.client import Client
from ksrv.testing import LoadFailed, Server, load
from tests.support.models import write_model

VECTOR = "inputs: [{name: x, datatype: FP32, shape: [-1, 2]}]\n"

HIDDEN = """
from helping import ask
from ksrv import BaseHandler


class Calls(BaseHandler):
    def inference(self, x):
        c = self.context
        return ask(c, x)
"""
HELPING = """
def ask(c, x):
    name = "called"
    return {"y": getattr(c, "mod" + "els")[name].infer({"x": x})["y"] + 1}
"""
LENIENT = """
from ksrv import BaseHandler


class Calls(BaseHandler):
    def inference(self, x):
        try:
            return {"y": self.context.models["called"].infer({"x": x})["y"] + 1}
        except Exception:
            return {"other": x}
"""
CALLED = "def inference(x):\n    assert x.any(), 'zeros'\n    return {'y': x}\n"


@pytest.mark.parametrize("executor", ["inline", "process"])
def test_a_handler_that_calls_another_model_is_found_by_running_it(tmp_path, executor):
    """However the call is written, and whatever the handler makes of the refusal."""
    outputs = "outputs: [{name: y, datatype: FP32, shape: [-1, 2]}]\n"
    for name, source in (("hidden", HIDDEN), ("lenient", LENIENT)):
        write_model(tmp_path, name, source, f"{VECTOR}{outputs}executor: {executor}\n")
        (tmp_path / name / "helping.py").write_text(HELPING)
    write_model(tmp_path, "called", CALLED, VECTOR + "warmup: false\n")
    with Server(tmp_path, start_timeout=120) as server, Client(server.url) as client:
        for name in ("hidden", "lenient"):
            answer = client.infer(name, {"x": np.array([[1, 2]], np.float32)})
            assert answer["y"].tolist() == [[2.0, 3.0]]
        assert "was not warmed up" not in server.log
        assert "failed in inference" not in server.log


def test_a_model_whose_code_merely_names_models_is_warmed_up(tmp_path):
    source = """
import pathlib
def spare(context): return context.models
def inference(x):
    (pathlib.Path(__file__).parent / "ran").touch()
    return {"y": x}
"""
    write_model(tmp_path, "m", source, VECTOR)
    with load(tmp_path / "m"):
        assert (tmp_path / "m" / "ran").exists()


def test_a_declared_caller_is_not_warmed_up(tmp_path):
    source = """
import pathlib
from ksrv import BaseHandler
class H(BaseHandler):
    def inference(self, x):
        (pathlib.Path(__file__).parent / "ran").touch()
        return {"y": x}
"""
    write_model(tmp_path, "m", source, VECTOR + "calls: [other]\n")
    with load(tmp_path / "m"):
        assert not (tmp_path / "m" / "ran").exists()


@pytest.mark.parametrize("parameters", ["batch", "a, b, c", "*, batch, context"])
def test_handle_function_without_two_arguments_is_refused(tmp_path, parameters):
    write_model(tmp_path, "m", f"def handle({parameters}): return 1\n", "")
    with pytest.raises(LoadFailed, match=r"two arguments, .* another name"):
        load(tmp_path / "m")
