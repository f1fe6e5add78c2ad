"""Models for the engine's tests: sources without files, and executors that tests drive by hand."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, cast

import numpy as np

from ksrv.engine.engine import Engine, EngineSettings
from ksrv.engine.executor import Executor
from ksrv.errors import DeadlineExceeded, KsrvError, NotFound
from ksrv.model.config import JoinPolicy, ModelConfig, ModelSource
from ksrv.model.spec import ModelSpec, TensorSpec
from ksrv.repository.entry import ModelEntry
from ksrv.repository.layout import Repository
from ksrv.request import ExecutorInputs, ExecutorOutputs, InferRequest, InferResponse, Tensor

X = TensorSpec("x", "FP32", (-1, 4))
Y = TensorSpec("y", "FP32", (-1, 4))


def source(name: str = "m", version: str = "", **settings: Any) -> ModelSource:
    """A version whose settings are given as keywords; `batch` and `delay` make its batching."""
    batch = settings.pop("batch", 0)
    delay = settings.pop("delay", 0.0)
    split = settings.pop("split", False)
    if batch:
        settings["batching"] = JoinPolicy(max_batch_size=batch, max_delay_ms=delay, split=split)
    settings.setdefault("inputs", (X,))
    settings.setdefault("outputs", (Y,))
    settings.setdefault("warmup", False)
    return ModelSource(
        name=name,
        version=version,
        folder=Path("/nonexistent"),
        root=Path("/nonexistent"),
        config=ModelConfig(**settings),
    )


class Models:
    """A repository whose models a test changes."""

    def __init__(self, *sources: ModelSource) -> None:
        self.entries: dict[str, ModelEntry] = {}
        self.put(*sources)

    def put(self, *sources: ModelSource) -> None:
        for one in sources:
            entry = self.entries.setdefault(one.name, ModelEntry(one.name))
            entry.versions[one.version] = one

    def scan(self) -> dict[str, ModelEntry]:
        return dict(self.entries)

    def entry(self, name: str, config: str | None = None) -> ModelEntry:
        if name not in self.entries:
            raise NotFound("the repository holds no model of this name")
        return self.scan()[name]

    def configured(self, name: str, config: str | None) -> AbstractContextManager[None]:
        assert config is None, "these models have no config.pbtxt"
        return nullcontext()


class FunctionExecutor:
    """Runs a function on the arrays of a batch."""

    any_thread = True
    keeps_deadlines = False
    ring = None

    def __init__(self, source: ModelSource, run: Callable[[ExecutorInputs], object]) -> None:
        self.source = source
        self._run = run
        self.alive = False
        self.closed = False

    def start(self) -> ModelSpec:
        self.alive = True
        assert self.source.config is not None
        return self.source.config.spec(self.source.name, self.source.version)

    def lease(self, nbytes: int) -> object:
        from ksrv._native.memory import buffer_pool

        return buffer_pool.lease(nbytes)

    def run(self, batch: ExecutorInputs, deadline_ns: int | None) -> ExecutorOutputs:
        result = self._run(batch)
        if isinstance(result, ExecutorOutputs):
            return result
        return ExecutorOutputs([tensor("y", result)])

    def begin(
        self,
        batch: ExecutorInputs,
        done: Callable[[ExecutorOutputs | KsrvError], None],
        deadline_ns: int | None,
    ) -> Callable[[], None]:
        raise AssertionError("no model of these tests has coroutines")

    def end_sequences(self, numbers: Sequence[int]) -> None:
        pass

    def on_death(self, callback: Callable[[str], None]) -> None:
        pass

    def close(self) -> None:
        self.alive = False
        self.closed = True


def tensor(name: str, data: object) -> Tensor:
    array = np.ascontiguousarray(data, np.float32)
    return Tensor(name, "FP32", array.shape, array)


def request(rows: int = 1, value: float = 1.0, model: str = "m", **fields: Any) -> InferRequest:
    data = np.full((rows, 4), value, np.float32)
    return InferRequest(model, inputs=[tensor("x", data)], **fields)


def engine(
    *sources: ModelSource,
    run: Callable[[ExecutorInputs], object] = lambda batch: batch.tensors["x"].data * 2,
    make: Callable[[ModelSource, int, int], Executor] | None = None,
    **settings: Any,
) -> Engine:
    """A started engine over models that all run one function."""
    made = Engine(
        cast(Repository, Models(*(sources or (source(),)))),
        EngineSettings(**settings),
        make_executor=make or (lambda one, number, threads: FunctionExecutor(one, run)),
    )
    made.start()
    return made


@contextmanager
def engine_of(folder: Path, **settings: Any) -> Iterator[Engine]:
    """Serve the models of a folder."""
    served = Engine(Repository([folder]), EngineSettings(**settings))
    served.start()
    try:
        yield served
    finally:
        served.close(20)


def submit_for(served: Engine, milliseconds: float, **fields: Any) -> object:
    """Submit a request with a deadline; if the deadline passes on the way, try again with a later deadline."""
    while True:
        deadline = time.monotonic_ns() + int(milliseconds * 1_000_000)
        try:
            return served.submit(request(deadline_ns=deadline, **fields))
        except DeadlineExceeded:
            milliseconds *= 2


def expire_in_handler(served: Engine) -> int:
    """Send requests until one has expired while a handler ran; how many have expired."""
    give_up = time.monotonic() + 60
    expired = 0
    while time.monotonic() < give_up:
        try:
            served.submit(request(), caller_blocks=True).wait()
            raise AssertionError("it was answered")
        except DeadlineExceeded as error:
            expired += 1
            if "while the handler ran" in error.message:
                return expired
    raise AssertionError("no request expired while a handler ran")


def answer_in_time(served: Engine, **fields: Any) -> tuple[InferResponse, int]:
    """Send a request until it is answered before its deadline; the answer, and how many expired."""
    give_up = time.monotonic() + 60
    expired = 0
    while True:
        try:
            return served.submit(request(**fields), caller_blocks=True).wait(), expired
        except DeadlineExceeded:
            expired += 1
            assert time.monotonic() < give_up, "it never came in time"
