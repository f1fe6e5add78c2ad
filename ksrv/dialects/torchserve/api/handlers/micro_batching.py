"""Overlaps the stages of one batch by cutting it into micro-batches: `ts.handler_utils.micro_batching`.

Each micro-batch has a thread, which takes it through the stages. A stage works on as many micro-batches at a time as it
has permits. An exception in a stage ends the request that it belongs to, not the thread.
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
    """Takes the place of a handler's `handle`, once assigned in its `__init__`.

    Args:
        parallelism: Micro-batches in each stage at a time; 1 for a stage that is not named.
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
        wait(running)
        return [row for part in running for row in part.result()]


def _asks_for(context: Any, mode: str) -> bool:
    try:
        return bool(context.get_request_header(0, mode) == "True")
    except (AttributeError, IndexError):
        return False
