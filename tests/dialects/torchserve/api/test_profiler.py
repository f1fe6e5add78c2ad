"""ENABLE_TORCH_PROFILER: traces of a handler's stages, on the CPU."""

import json
import logging

import pytest
import torch

from ksrv.dialects.torchserve.api.profiling import VARIABLE, trace_folder
from ksrv.request import ExecutorInputs, RequestPart, Tensor

HANDLER = """
from ts.handler_utils.micro_batching import MicroBatching
from ts.torch_handler.base_handler import BaseHandler

class Doubles(BaseHandler):
    def __init__(self):
        super().__init__()
        if {split}:
            self.handle = MicroBatching(self)

    def initialize(self, context):
        self.manifest = None
        self.profiler_args = {arguments}
        self.model = lambda x: x @ x.T
        self.device = "cpu"

    def get_insights(self, tensor, raw, target):
        return [[7]] * 3
"""


def three_rows(explain=False):
    tensor = Tensor("x", "FP32", (3, 4), torch.eye(3, 4).numpy())
    return ExecutorInputs({"x": tensor}, 3, [RequestPart(slice(0, 3), "id")], explain)


def traces(folder):
    return [json.loads(file.read_text()) for file in sorted(folder.glob("*.pt.trace.json"))]


@pytest.fixture
def answer_of(ts_runner, monkeypatch, tmp_path):
    def run(wanted, *, split=False, arguments="{}", explain=False):
        monkeypatch.setenv(VARIABLE, wanted)
        runner = ts_runner(HANDLER.format(split=split, arguments=arguments))
        return runner.run(three_rows(explain)).tensors[0].data

    return run


EYE = [b"[1.0,0.0,0.0]", b"[0.0,1.0,0.0]", b"[0.0,0.0,1.0]"]


@pytest.mark.parametrize("split", [False, True])
def test_stages_and_operations_are_in_the_trace(answer_of, tmp_path, caplog, split):
    caplog.set_level(logging.INFO, logger="ksrv.dialects.torchserve")
    assert answer_of(str(tmp_path / "traces"), split=split) == EYE
    (trace,) = traces(tmp_path / "traces" / "own")
    events = {event["name"]: event for event in trace["traceEvents"]}
    assert {"preprocess", "inference", "postprocess", "aten::matmul"} <= events.keys()
    assert events["aten::mm"]["args"]["Input Dims"] == [[3, 4], [4, 3]]
    behind = caplog.text.partition("slowest")[2]
    assert "aten::mm" in behind


def test_an_explanation_has_a_region_of_its_own(answer_of, tmp_path):
    answer_of(str(tmp_path / "traces"), explain=True)
    (trace,) = traces(tmp_path / "traces" / "own")
    names = {event["name"] for event in trace["traceEvents"]}
    assert "explain" in names
    assert "inference" not in names


def test_the_handlers_own_arguments_hold(answer_of, tmp_path):
    arguments = '{"record_shapes": False, "on_trace_ready": lambda profiler: print("ready")}'
    assert answer_of(str(tmp_path / "traces"), arguments=arguments) == EYE
    assert not (tmp_path / "traces").exists()


def test_without_the_variable_nothing_is_profiled(answer_of, monkeypatch):
    monkeypatch.setattr(torch.profiler, "profile", None)
    assert answer_of("") == EYE


def test_where_traces_go(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv(VARIABLE, "true")
    assert trace_folder("m") == f"{tmp_path}/pytorch_profiler/m"
    monkeypatch.setenv(VARIABLE, "/elsewhere")
    assert trace_folder("m") == "/elsewhere/m"
