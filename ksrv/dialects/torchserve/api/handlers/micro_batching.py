"""Overlaps the stages of one batch by cutting it into micro-batches: `ts.handler_utils.micro_batching`.

A thread of a pool runs one micro-batch through all stages. Each stage has a semaphore, so at most `parallelism`
micro-batches are in the stage at a time. An exception in a stage fails the batch, not the thread.
"""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

from ksrv.dialects.torchserve.api import profiling

STAGES = ("preprocess", "inference", "postprocess")

_stage_thread = threading.local()


def get_micro_batch_idx() -> int:
    """Return the index of the micro-batch that the calling stage thread works on."""
    return getattr(_stage_thread, "index", 0)


class MicroBatching:
    """A replacement for a handler's `handle`: assign an object to `self.handle` in the handler's `__init__`.

    Args:
        parallelism: For each stage the number of micro-batches in the stage at a time; 1 if left out.
    """

    def __init__(
        self,
        parent_handler: Any,
        micro_batch_size: int = 1,
        parallelism: dict[str, int] | None = None,
    ) -> None:
        self.handler = parent_handler
        self.micro_batch_size = micro_batch_size
        self._pool: ThreadPoolExecutor | None = None
        self.parallelism = parallelism or {}

    @property
    def parallelism(self) -> dict[str, int]:
        return self._parallelism

    @parallelism.setter
    def parallelism(self, wanted: dict[str, int]) -> None:
        unknown = set(wanted) - set(STAGES)
        if unknown or any(count < 0 for count in wanted.values()):
            raise ValueError(f"parallelism takes thread counts for {STAGES}, not {wanted}")
        self.shutdown()
        # A stage without permits could never run: zero is taken as one.
        self._parallelism = {stage: max(1, wanted.get(stage, 1)) for stage in STAGES}
        self._permits = {
            stage: threading.Semaphore(count) for stage, count in self._parallelism.items()
        }

    def shutdown(self) -> None:
        """End the threads; the next call starts new threads."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def _work(self, index: int, value: Any) -> Any:
        _stage_thread.index = index
        for stage in STAGES:
            with self._permits[stage]:
                value = getattr(self.handler, stage)(value)
        return value

    def __call__(self, data: Sequence[Any], context: Any) -> Any:
        """Run one batch as the handler's `handle` does.

        Raises:
            Exception: A stage raised it.
        """
        handler = self.handler
        handler.context = context
        if _asks_for(context, "describe"):
            return [handler.describe_handle()]
        if profiling.is_wanted() and hasattr(handler, "_infer_with_profiler"):
            return handler._infer_with_profiler(data=data)[0]
        if _asks_for(context, "explain"):
            return handler.explain_handle(handler.preprocess(data), data)
        if self._pool is None:
            threads = sum(self._parallelism.values())
            self._pool = ThreadPoolExecutor(threads, thread_name_prefix="micro-batch")
        size = self.micro_batch_size
        parts = [data[first : first + size] for first in range(0, len(data), size)]
        running = [self._pool.submit(self._work, *part) for part in enumerate(parts)]
        wait(running)  # all of them, also after an exception: no thread may still use the batch
        return [row for part in running for row in part.result()]


def _asks_for(context: Any, mode: str) -> bool:
    try:
        return bool(context.get_request_header(0, mode) == "True")
    except (AttributeError, IndexError):
        return False
