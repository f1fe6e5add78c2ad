from collections.abc import Callable, Sequence
from typing import Any

from ksrv._native.batch.batch import BatchInputs, BatchOutputs
from ksrv._native.queue.request_queue import Queue
from ksrv._native.queue.stats import Stats
from ksrv._native.tensor.tensor import Tensor

class FastBatches:
    def __init__(
        self,
        lease: Callable[[int], Any],
        read_requests: Callable[[list[Any]], list[Any]],
        answer_generally: Callable[[FastBatch, BatchOutputs, Queue, Stats, bool], None],
    ) -> None: ...

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
    arrays: tuple[list[Any], dict[int, int]]
    tensors: dict[str, Tensor]
    def keep(self, alive: list[Any]) -> None: ...
    def inputs(self) -> BatchInputs: ...
    def answer(self, outputs: BatchOutputs, queue: Queue, stats: Stats, *, later: bool) -> None: ...
