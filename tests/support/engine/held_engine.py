"""The engine for tests of a front end: models of a few lines. Two of them wait until the test releases them."""

import threading
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from ksrv.engine.changes import Look
from ksrv.engine.engine import Engine, EngineSettings
from ksrv.errors import Cancelled
from ksrv.repository.entry import ModelEntry
from ksrv.repository.layout import Repository
from ksrv.request import InferRequest, RequestHandle
from tests.support.engine import engine_models

HANDLERS = """
from ksrv import BaseHandler
from ksrv.errors import InferenceError
from ksrv.errors import RESERVED_HEADERS
from tests.support.engine import held_engine


class Echo(BaseHandler):
    def handle(self, batch, context):
        batch.set_parameter(0, "k", True)
        return {name: batch[name] for name in batch}


class Add(BaseHandler):
    def handle(self, batch, context):
        batch.set_parameter(0, "k", True)
        return {"y": batch["x"] + 1}


class Mean(BaseHandler):
    def inference(self, image):
        return {"mean": image.mean(axis=(1, 2))}


class Held(BaseHandler):
    def inference(self, x):
        held_engine.begun.set()
        assert held_engine.released.wait(60), "the test does not release its requests"
        return {"y": x}


class Failing(BaseHandler):
    def inference(self, x):
        raise InferenceError("no such cat", 404, {"X-Cat": "none"})


class Broken(BaseHandler):
    def inference(self, x):
        raise ZeroDivisionError("a secret")


class Headers(BaseHandler):
    def handle(self, batch, context):
        batch.set_header(0, "X-Took", 5)
        batch.set_header(0, "X#Name", "x")
        for name in RESERVED_HEADERS:
            batch.set_header(0, name.title(), "audio/wav" if name == "content-type" else "x")
        return {"y": batch["x"]}


class Seen(BaseHandler):
    def handle(self, batch, context):
        request = batch.requests[0]
        return {"seen": [repr((dict(request.headers), dict(request.parameters)))]}


class Bad(BaseHandler):
    def initialize(self, context):
        raise RuntimeError("the weights are gone")
"""
X = "inputs: [{name: x, datatype: FP32, shape: [-1, 4]}]\n"
Y = "outputs: [{name: y, datatype: FP32, shape: [-1, 4]}]\n"
BRAIN = (
    "inputs: [{name: x, datatype: BF16, shape: [-1, 3]}]\n"
    "outputs: [{name: x, datatype: BF16, shape: [-1, 3]}]\n"
)
IMAGE = "inputs: [{name: image, datatype: FP32, shape: [-1, 8, 8, 3], image: {}}]\n"
MODELS = {
    "echo": ("Echo", ""),
    "add": ("Add", f"{X}{Y}batching: {{max_batch_size: 8}}\n"),
    "brain": ("Echo", BRAIN),
    "image": ("Mean", IMAGE),
    "slow": ("Held", f"{X}queue_size: 1000\n"),
    "full": ("Held", f"{X}queue_size: 1\n"),
    "failing": ("Failing", X),
    "broken": ("Broken", X),
    "headers": ("Headers", X),
    "seen": ("Seen", X),
    "bad": ("Bad", X),
}
"""The handlers of the models, and their settings."""

begun = threading.Event()
"""Set by the held models, once they run."""

released = threading.Event()
"""Lets the held models answer."""


def write_models(root: Path) -> None:
    """Write the models, each with one version; `bad` cannot be loaded."""
    for name, (handler, settings) in MODELS.items():
        version = root / name / "1"
        version.mkdir(parents=True)
        (version / "handler.py").write_text(HANDLERS)
        (root / name / "model.yaml").write_text(
            f"handler: handler.py:{handler}\nwarmup: false\n{settings}"
        )


class HeldEngine(Engine):
    """The engine over these models; `slow` and `full` are held, and the queue of `full` is full."""

    def __init__(self, root: Path) -> None:
        super().__init__(Repository([root]), EngineSettings(ready_when="any"))
        self.release = released
        self.handles: list[Any] = []
        self.changes: list[tuple[str, str]] = []
        self.carry_out = self._carry_out_and_note

    def _carry_out_and_note(self, look: Look) -> None:
        found = look()
        self._carry_out_here(lambda: found)
        self.changes += [(change.kind, change.name) for change in found]

    def start(
        self,
        *,
        wait: bool = True,
        unloaded: Collection[str] = (),
        models: Callable[[], tuple[Mapping[str, ModelEntry], Collection[str]]] | None = None,
    ) -> None:
        released.clear()
        super().start(wait=wait, unloaded=unloaded, models=models)
        begun.clear()
        super().submit(engine_models.request(model="full"))
        assert begun.wait(60)  # it runs, and the next request waits
        super().submit(engine_models.request(model="full"))

    def submit(
        self,
        request: InferRequest,
        callback: Callable[[RequestHandle], None] | None = None,
        **how: bool,
    ) -> RequestHandle:
        handle = super().submit(request, callback, **how)
        self.handles.append(handle)
        return handle

    def close(self, timeout: float | None = None) -> None:
        released.set()
        super().close(timeout)


def was_cancelled(handle: RequestHandle) -> bool:
    if not handle.done():
        return False
    try:
        handle.wait()
    except Cancelled:
        return True
    return False
