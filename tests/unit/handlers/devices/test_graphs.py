"""Recorded launches: one graph for each form of the inputs, whose outputs are kept from being overwritten."""

import logging

import numpy as np
import pytest
import torch

from ksrv.errors import HandlerFailed
from ksrv.handlers.devices import graphs
from ksrv.handlers.devices.graphs import GraphedModel
from tests.support.devices.fake_device import FakeDevice
from tests.support.devices.nets import DEFAULT, NET

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

SEVEN = NET.replace(
    "return x",
    """if x.shape[1] == 7:
            raise ValueError("seven columns")
        return x""",
)
ENDS = NET.replace(
    "return x",
    """self.calls = getattr(self, "calls", 0) + 1
        if self.calls == 2:
            raise SystemExit("while it is recorded")
        return x""",
)
KEEPS = """
from ksrv import BaseHandler
class Keeps(BaseHandler):
    kept = None
    def inference(self, x):
        before, self.kept = self.kept, self.model(x)
        return self.kept if before is None else before + 0 * self.kept
"""


@pytest.fixture
def graphed(runner_of, fake_devices, batch_of):
    """Make a runner whose model is recorded, and a function that runs rows of one number on it."""

    def make(handler=DEFAULT, config="", net=SEVEN):
        runner = runner_of(
            handler,
            f"class: net.py:Net\ndevice: cpu\ncuda_graphs: true\n{config}",
            files={"net.py": net},
        )
        assert isinstance(runner.handler.model, GraphedModel)

        def run(value, rows=2, columns=3):
            batch = batch_of(np.full((rows, columns), value, np.float32))
            return runner.run(batch).tensors[0].data.tolist()

        return runner, run

    return make


def counted(runner):
    events = runner.device.events
    return events.count("record"), events.count("replay")


def test_each_input_shape_is_recorded_once_and_replayed(graphed):
    runner, run = graphed()
    for value in (1, 2, 3):
        assert run(value) == [[2.0 * value] * 3] * 2
    assert counted(runner) == (1, 2)
    assert run(5, rows=4) == [[10.0] * 3] * 4
    assert run(6, rows=2) == [[12.0] * 3] * 2
    assert counted(runner) == (2, 3)
    assert runner.handler.model.graphs == 2
    assert runner.handler.model.factor == 2.0, "the module itself is there"


def test_answers_of_earlier_batches_are_not_overwritten(graphed, batch_of):
    runner, _ = graphed()
    assert not runner.handler.model.clones, "the default stages keep nothing"
    answers = [
        runner.run(batch_of(np.full((2, 3), value, np.float32))).tensors[0].data
        for value in range(5)
    ]
    assert [answer[0, 0] for answer in answers] == [0, 2, 4, 6, 8]


def test_a_handler_that_keeps_outputs_has_copies_of_them(graphed):
    runner, run = graphed(KEEPS)
    assert runner.handler.model.clones
    run(1)
    assert [run(value)[0][0] for value in (2, 3, 4, 5)] == [2, 4, 6, 8]
    assert counted(runner) == (1, 4)


def test_graphs_wait_once_per_batch(graphed):
    runner, run = graphed()
    run(1)
    runner.device.events.clear()
    run(2)
    assert runner.device.events == [
        "enter", "in 24 pageable", "replay", "out 24 pinned", "synchronise", "leave"
    ]  # fmt: skip
    assert FakeDevice.waited_by_handlers == []


def test_a_model_that_cannot_be_recorded_runs_as_before(graphed, monkeypatch, caplog):
    monkeypatch.setattr(FakeDevice, "refuses", True)
    runner, run = graphed()
    with caplog.at_level(logging.WARNING, "ksrv.handlers"):
        assert [run(value)[0][0] for value in (1, 2, 3)] == [2, 4, 6]
    assert counted(runner) == (0, 0)
    [record] = caplog.records
    assert record.getMessage() == (
        "the model m runs without graphs: RuntimeError: operation not permitted when stream is "
        "capturing"
    )


def test_model_error_during_recording_is_raised_unchanged(graphed):
    runner, run = graphed()
    with pytest.raises(HandlerFailed, match="ValueError"):
        run(1, columns=7)
    assert runner.handler.model.failure is None
    assert run(1) == [[2.0] * 3] * 2
    assert counted(runner)[0] == 1


def test_system_exit_during_recording_fails_only_the_batch(graphed):
    runner, run = graphed(net=ENDS)
    with pytest.raises(HandlerFailed, match="SystemExit"):
        run(1)
    assert (runner.handler.model.graphs, runner.handler.model.failure) == (0, None)
    assert runner.device.events[-1] == "leave"
    assert [run(value)[0][0] for value in (2, 3, 4)] == [4, 6, 8]
    assert counted(runner) == (2, 2)  # the first recording was left, the second is replayed


def test_the_number_of_graphs_is_bounded(graphed, monkeypatch):
    monkeypatch.setattr(graphs, "MOST_GRAPHS", 3)
    runner, run = graphed()
    for rows in (1, 2, 3, 4, 5, 5, 1):
        assert run(1, rows=rows) == [[2.0] * 3] * rows
    assert counted(runner) == (3, 1)


def test_cpu_inputs_and_gradients_bypass_the_graphs(fake_devices):
    device = FakeDevice("cpu")
    model = GraphedModel(lambda x, scale=1: x * scale, device, "m")
    with device.running(), torch.inference_mode():
        x = device.put(np.ones((1, 2), np.float32))
        assert model(x, scale=3).tolist() == model(x, scale=3).tolist() == [[3, 3]]
        assert model(x, scale=4).tolist() == [[4, 4]]
        assert model.graphs == 2, "a constant is part of the form"
        assert model(torch.ones(1, 2)).tolist() == [[1, 1]]
        assert model(x, scale=[1][0:1][0]).tolist() == [[1, 1]]
        assert model(x, scale=x).tolist() == [[1, 1]]
    graphs_before = model.graphs
    with device.running(), torch.enable_grad():
        model(device.put(np.ones((1, 9), np.float32)))
    assert model.graphs == graphs_before


def test_compiled_models_keep_their_own_graphs(runner_of, fake_devices, caplog):
    config = "class: net.py:Net\ndevice: cpu\ncuda_graphs: true\npt2: {backend: eager, mode: null}"
    compiled = "pt2: {compile: {enable: true, backend: cudagraphs}}"
    runner = runner_of(DEFAULT, config.rpartition("\n")[0] + "\n" + compiled, files={"net.py": NET})
    assert not isinstance(runner.handler.model, GraphedModel)
    assert "pt2 already records graphs" in caplog.text


def test_without_a_stream_there_are_no_graphs(runner_of):
    runner = runner_of(
        DEFAULT, "class: net.py:Net\ndevice: cpu\ncuda_graphs: true", files={"net.py": NET}
    )
    assert type(runner.handler.model).__name__ == "Net"
