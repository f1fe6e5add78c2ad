"""The runner: from a folder with a model.yaml to answers, times and errors."""

import contextlib
import gc
import json
import logging
import sys
import weakref
from importlib.machinery import ModuleSpec
from types import ModuleType

import numpy as np
import pytest

from ksrv.errors import (
    Cancelled,
    DeadlineExceeded,
    HandlerFailed,
    NotReady,
    Overloaded,
)
from ksrv.handlers.runner import HandlerLoadError


def ones(rows):
    return np.ones((rows, 2), np.float32)


def test_stage_can_be_replaced_on_the_object(runner_of, batch_of):
    runner = runner_of(
        """
        from ksrv import BaseHandler
        class Own(BaseHandler):
            def initialize(self, context):
                super().initialize(context)
                STAGE
            def inference(self, x):
                return {"y": x}
        """.replace("STAGE", "self.preprocess = lambda batch: batch['x'] + 1")
    )
    assert runner.run(batch_of(ones(1))).tensors[0].data.tolist() == [[2, 2]]


@pytest.mark.parametrize(
    "error",
    [
        DeadlineExceeded("the deadline passed"),
        Overloaded("the queue is full", "queue_full"),
        NotReady("the model is not ready"),
        Cancelled("no client waits"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_refusals_of_called_models_leave_no_traceback(error, runner_of, caplog, batch_of):
    runner = runner_of(
        """
        from ksrv import BaseHandler
        class Caller(BaseHandler):
            def inference(self, x):
                raise self.error
        """
    )
    runner.handler.error = error
    with caplog.at_level(logging.DEBUG), pytest.raises(type(error)):
        runner.run(batch_of(ones(1)))
    assert not caplog.records


def test_explanations_are_returned(runner_of, batch_of):
    runner = runner_of(
        """
        from ksrv import BaseHandler
        class Explains(BaseHandler):
            def explain(self, batch, x):
                return {"why": x * batch.rows}
        """,
        "outputs: [{name: y, datatype: FP32, shape: [-1, 2]}]",
    )
    answer = runner.run(batch_of(ones(2), explain=True))
    assert [(one.name, one.data.tolist()) for one in answer.tensors] == [("why", [[2, 2], [2, 2]])]
    assert set(answer.timings) == {"preprocess", "explain"}


def test_super_init_may_be_left_out(runner_of, batch_of):
    runner = runner_of(
        """
        from ksrv import BaseHandler
        class Own(BaseHandler):
            def __init__(self):
                self.factor = 3
            def inference(self, x):
                assert self.labels is None and self.model is None
                return x * self.factor
        """
    )
    assert runner.run(batch_of(ones(1))).tensors[0].data.tolist() == [[3, 3]]


def test_context_has_the_settings_of_model_yaml(runner_of, batch_of, tmp_path):
    runner = runner_of(
        """
        from ksrv import BaseHandler
        class Knows(BaseHandler):
            def initialize(self, context):
                super().initialize(context)
                self.seen = context
            def inference(self, x):
                c = self.context
                assert c is self.seen and c.batch.rows == 2
                return [{
                    "name": c.model_name, "version": c.model_version, "dir": str(c.model_dir),
                    "factor": c.parameters["factor"], "labels": self.labels, "instance": c.instance,
                    "device": str(self.device), "id": c.batch.requests[row].id,
                    "gpu": c.system_properties["gpu_id"],
                } for row in range(2)]
        """,
        "parameters: {factor: 4}\nlabels: l.json\ndevice: cpu",
        files={"l.json": '["a", "b"]'},
        instance=3,
    )
    data = runner.run(batch_of(ones(1), ones(1))).tensors[0].data
    assert [json.loads(text) for text in data] == [
        {"name": "m", "version": "", "dir": str(tmp_path / "m"), "factor": 4, "labels": ["a", "b"],
         "instance": 3, "device": "cpu", "id": f"id{row}", "gpu": None}
        for row in range(2)
    ]  # fmt: skip


def test_timed_functions_appear_beside_the_stages(runner_of, batch_of):
    runner = runner_of(
        """
        from ksrv import BaseHandler, timed

        @timed
        def helper(a, /, b, *, c=1):
            "Add all three."
            return a + b + c

        class Timed(BaseHandler):
            @timed
            def preprocess(self, batch):
                return helper(batch["x"], 1, c=2)
            @timed(name="second half")
            def rest(self, y):
                return y
            def inference(self, x):
                assert helper.__name__ == "helper" and helper.__doc__ == "Add all three."
                return self.rest(self.rest(x))
        """
    )
    answer = runner.run(batch_of(ones(1)))
    assert set(answer.timings) == {
        "preprocess", "helper", "inference", "second_half", "postprocess"
    }  # fmt: skip
    assert answer.timings["preprocess"] >= answer.timings["helper"]
    assert runner.run(batch_of(ones(1))).tensors[0].data.tolist() == [[4, 4]]


def test_a_timed_function_runs_outside_of_a_batch():
    from ksrv import timed

    assert timed(lambda: 3)() == 3


def test_handler_sees_which_clients_remain(runner_of, batch_of, chunks):
    runner = runner_of(
        """
        from ksrv import BaseHandler
        class Streams(BaseHandler):
            def inference(self, x):
                batch = self.context.batch
                heard = [batch.listening(), batch.listening(0), batch.listening(2)]
                return [str(heard)] * len(x)
        """
    )

    def heard(*waiting):
        chunks.waiting = frozenset(waiting)
        return runner.run(batch_of(ones(2), ones(1), emit=chunks)).tensors[0].data[0]

    assert heard(0, 1) == b"[True, True, True]"
    assert heard(1) == b"[True, False, True]"
    assert heard() == b"[False, False, False]"
    plain = runner.run(batch_of(ones(2), ones(1))).tensors[0].data[0]
    assert plain == b"[True, True, True]"


def test_failures_of_single_requests_survive_an_error_of_the_batch(runner_of, batch_of):
    runner = runner_of(
        """
        from ksrv import BaseHandler
        class Both(BaseHandler):
            def preprocess(self, batch):
                batch.fail(0, "mine", 415)
                raise KeyError("x")
        """
    )
    answer = runner.run(batch_of(ones(1), ones(1)))
    assert [answer.failures[place].http_status for place in (0, 1)] == [415, 500]
    assert answer.tensors == []


@pytest.mark.parametrize("stage", ["preprocess", "inference", "postprocess"])
def test_failed_stage_is_named(runner_of, batch_of, stage):
    runner = runner_of(
        f"""
        from ksrv import BaseHandler
        class Broken(BaseHandler):
            def inference(self, x):
                return x
            def {stage}(self, x):
                raise SystemExit(3)
        """
    )
    with pytest.raises(HandlerFailed, match=f"stage {stage} of the model m .*SystemExit"):
        runner.run(batch_of(ones(1)))


def test_nothing_keeps_a_batch_alive_after_its_answer(runner_of, batch_of, monkeypatch):
    # pytest keeps every log record, and those keep their tracebacks.
    monkeypatch.setattr(logging.getLogger("ksrv.handlers"), "disabled", True)
    runner = runner_of(
        """
        from ksrv import BaseHandler
        class Sometimes(BaseHandler):
            def inference(self, x):
                if x[0, 0] > 1:
                    raise ValueError(x)
                return x * 2
        """
    )
    for value in (1, 2):
        batch = batch_of(np.full((1, 2), value, np.float32))
        gone = weakref.ref(batch.tensors["x"].data)
        if value == 1:
            runner.run(batch)
        else:
            with contextlib.suppress(HandlerFailed):
                runner.run(batch)
        del batch
        gc.collect()
        assert gone() is None


def test_batch_ignores_a_half_imported_torch(runner_of, batch_of, monkeypatch):
    runner = runner_of("def inference(x): return x + 1")
    half = ModuleType("torch")
    half.__spec__ = ModuleSpec("torch", None)
    half.__spec__._initializing = True
    monkeypatch.setitem(sys.modules, "torch", half)
    answer = runner.run(batch_of(np.ones((2, 3), np.float32)))
    assert answer.tensors[0].data.tolist() == [[2.0] * 3] * 2


def test_error_without_text_is_reported_by_place(runner_of):
    with pytest.raises(
        HandlerLoadError, match=r"cannot be loaded: AssertionError \(handler\.py, line \d+\)$"
    ):
        runner_of("assert False\ndef handle(batch, context):\n    return batch\n")
