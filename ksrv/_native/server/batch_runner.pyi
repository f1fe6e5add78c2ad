from typing import Any

from ksrv._native.queue.request_queue import Queue
from ksrv._native.queue.stats import Stats
from ksrv._native.server.fast_batch import FastBatches

QUICK_NS: int
MAX_INLINE_CREDIT: int
APART: int

class BatchRunner:
    busy_since: int
    inline_credit: int
    stats: Stats
    queue: Queue
    executor: Any
    slot: int
    fast_batches: FastBatches
    def __init__(
        self, queue: Queue, executor: Any, fast_batches: FastBatches, stats: Stats
    ) -> None: ...
    def run_inline(self, handles: list[Any]) -> None: ...
    def _batch_of(self, handles: list[Any]) -> Any: ...
    def _run(self, batch: Any, inline: bool) -> None: ...
    def _finish_dispatched(self, dispatched: Any) -> None: ...
    def _execute(self, batch: Any, later: bool) -> None: ...
