"""An engine of a few lines for tests of the front ends: real threads and handles, models that are functions.

Tests hold and release its requests by hand, and see what a front end asked for.
"""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from ksrv.errors import (
    Cancelled,
    DeadlineExceeded,
    InferenceError,
    NotFound,
    NotReady,
    Overloaded,
)
from ksrv.request import InferResponse, Tensor
from ksrv.spec import ImageSpec, ModelSpec, TensorSpec

FP32 = TensorSpec("x", "FP32", (-1, 4))
SPECS = {
    spec.name: spec
    for spec in (
        ModelSpec("echo"),
        ModelSpec("add", "", "python", (FP32,), (TensorSpec("y", "FP32", (-1, 4)),), None, 8),
        ModelSpec("image", inputs=(TensorSpec("image", "FP32", (-1, 8, 8, 3), ImageSpec()),)),
        ModelSpec("slow"),
        ModelSpec("failing"),
        ModelSpec("broken"),
        ModelSpec("full"),
        ModelSpec("headers"),
        ModelSpec("seen"),
    )
}


@dataclass
class State:
    name: str
    version: str
    state: str
    reason: str


class Handle:
    def __init__(self, request: Any) -> None:
        self.request = request
        self._ended = threading.Event()
        self._outcome = None
        self._callbacks: list[Any] = []
        self._lock = threading.Lock()
        self.cancelled = False

    def wait(self) -> Any:
        self._ended.wait()
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        return self._outcome

    def done(self) -> Any:
        return self._ended.is_set()

    def cancel(self) -> None:
        self.cancelled = True
        self.finish(Cancelled("the request was cancelled"))

    def add_done_callback(self, callback: Any) -> None:
        with self._lock:
            if not self._ended.is_set():
                self._callbacks.append(callback)
                return
        callback(self)

    def finish(self, outcome: Any) -> None:
        with self._lock:
            if self._ended.is_set():
                return
            self._outcome = outcome
            self._ended.set()
            callbacks = list(self._callbacks)
        for callback in callbacks:
            callback(self)


class StandInEngine:
    """What front ends ask of an engine; `full` has a full queue, `slow` waits for `release`."""

    specs: Mapping[str, ModelSpec] = SPECS

    def __init__(self) -> None:
        self.is_ready = True
        self.unready_models: set[str] = set()
        self.handles: list[Handle] = []
        self.release = threading.Event()  # lets "slow" answer
        self.loaded: list[str] = []
        self.most_at_once = 0
        self._lock = threading.Lock()

    def spec(self, name: str, version: str = "") -> Any:
        if name not in self.specs or version not in ("", "1"):
            raise NotFound(f"Request for unknown model: '{name}' is not found")
        if name in self.unready_models:
            raise NotReady(f"model '{name}' is not ready")
        return self.specs[name]

    def find(self, name: str, version: str = "") -> Any:
        return SimpleNamespace(spec=self.spec(name, version), retired=False)

    def submit(
        self,
        request: Any,
        callback: Any = None,
        *,
        allow_inline: bool = False,
        caller_blocks: bool = False,
    ) -> Any:
        self.spec(request.model_name, request.model_version)
        if request.model_name == "full":
            raise Overloaded("the queue of model 'full' holds 1 requests, which is its limit")
        handle = Handle(request)
        if callback is not None:
            handle.add_done_callback(callback)
        with self._lock:
            self.handles.append(handle)
            self.most_at_once = max(
                self.most_at_once, sum(not handle.done() for handle in self.handles)
            )
        threading.Thread(target=self._run, args=(handle,), daemon=True).start()
        return handle

    def _run(self, handle: Any) -> None:
        request = handle.request
        if request.model_name == "slow":
            while not self.release.wait(0.01):
                if handle.done():
                    return
                if request.deadline_ns and time.monotonic_ns() > request.deadline_ns:
                    handle.finish(DeadlineExceeded("the deadline passed"))
                    return
        try:
            handle.finish(self.answer(request))
        except Exception as error:
            handle.finish(error)

    def infer(self, request: Any) -> Any:
        return self.submit(request).wait()

    def answer(self, request: Any) -> Any:
        outputs = request.inputs
        headers = {}
        match request.model_name:
            case "failing":
                raise InferenceError("no such cat", 404, {"X-Cat": "none"})
            case "broken":
                raise ZeroDivisionError("a secret")
            case "add":
                y = request.inputs[0].data + 1
                outputs = [Tensor("y", "FP32", y.shape, y)]
            case "image":
                sizes = np.array([len(element) for element in request.inputs[0].data])
                outputs = [Tensor("size", "INT64", sizes.shape, sizes)]
            case "headers":
                headers = {"X-Took": "5", "Bad Name": "x"}
            case "seen":
                text = repr((dict(request.headers), dict(request.parameters))).encode()
                outputs = [Tensor("seen", "BYTES", (1,), [text])]
        return InferResponse(
            request.model_name, "1", request.id, outputs, {"k": True}, headers=headers
        )

    def routable_models(self) -> Any:
        return []

    def live(self) -> bool:
        return True

    def ready(self) -> Any:
        return self.is_ready

    def model_ready(self, name: str, version: str = "") -> bool:
        if name in self.unready_models:
            return False
        self.spec(name, version)
        return True

    def versions(self, name: str) -> Any:
        return ["1"]

    def index(self, ready_only: bool = False) -> Any:
        states = [State(name, "1", "READY", "") for name in sorted(self.specs)]
        return [*states, *([] if ready_only else [State("bad", "", "UNAVAILABLE", "no file")])]

    def load(self, name: str) -> None:
        self.spec(name)
        self.loaded.append(name)

    def unload(self, name: str) -> None:
        self.spec(name)
        self.loaded.remove(name)

    def statistics(self, name: str = "", version: str = "") -> Any:
        once = SimpleNamespace(count=1, ns=10)
        fields = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")
        return [
            SimpleNamespace(
                name=name or "echo",
                version="1",
                last_inference_ms=5,
                inference_count=1,
                execution_count=1,
                batches=[],
                **dict.fromkeys(fields, once),
            )
        ]
