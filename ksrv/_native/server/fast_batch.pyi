from collections.abc import Callable, Sequence
from typing import Any

from ksrv._native.batch.batch import BatchInputs, BatchOutputs
from ksrv._native.queue.request_queue import Queue
from ksrv._native.queue.stats import Stats
from ksrv._native.tensor.aliasing_check import InputReferences
from ksrv._native.tensor.tensor import Tensor

class FastBatches:
    def __init__(
        self,
        fill: Callable[[FastBatch, list[Any], Queue, Stats], None],
        lease: Callable[[int], Any],
        read_requests: Callable[[list[Any]], list[Any]],
        answer_generally: Callable[[FastBatch, BatchOutputs, Queue, Stats, bool], None],
    ) -> None: ...
    def new_batch(self, room: int) -> FastBatch: ...

class FastRequests(Sequence[Any]):
    def __len__(self) -> int: ...
    def __getitem__(self, place: Any) -> Any: ...

class FastBatch(BatchInputs):
    handles: list[Any]
    spent_ns: int
    ran_ns: int
    attempts: int
    streamed: bool
    ended_before: dict[int, Any]
    references: InputReferences | None
    tensors: dict[str, Tensor]
    failed: list[tuple[Any, Any]]
    def takes(self, handles: list[Any]) -> bool: ...
    def add(self, handles: list[Any]) -> None: ...
    def fill(self, handles: list[Any], queue: Queue, stats: Stats) -> None: ...
    def truncate(self, count: int) -> None: ...
    def keep(self, alive: list[Any]) -> None: ...
    def inputs(self) -> BatchInputs: ...
    def answer(self, outputs: BatchOutputs, queue: Queue, stats: Stats, *, later: bool) -> None: ...
