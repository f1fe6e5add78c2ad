"""Overlaps the stages of one batch by cutting it into micro-batches: `ts.handler_utils.micro_batching`.

Each stage has separate threads, joined by queues. An exception in a stage ends the request that it
belongs to, not the thread.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

from ksrv.dialects.torchserve.api import profiling

STAGES = ("preprocess", "inference", "postprocess")

_place = threading.local()


def get_micro_batch_idx() -> int:
    """Return the index of the micro-batch that the calling stage thread works on."""
    return getattr(_place, "index", 0)


@dataclass
class _Run:
    """One call of a `MicroBatching` object: the parts that are still under way."""

    results: list[Any]
    error: BaseException | None = None
    left: int = 0
    done: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def finish(self, index: int, result: Any, error: BaseException | None) -> None:
        with self.lock:
            self.results[index] = result
            self.error = self.error or error
            self.left -= 1
            if self.left == 0:
                self.done.set()


class MicroBatching:
    """Takes the place of a handler's `handle`, once assigned in its `__init__`.

    Args:
        parallelism: Threads for each stage; one where a stage is not named.
    """

    def __init__(
        self,
        parent_handler: Any,
        micro_batch_size: int = 1,
        parallelism: dict[str, int] | None = None,
    ) -> None:
        self.handler = parent_handler
        self.micro_batch_size = micro_batch_size
        self._queues: dict[str, SimpleQueue[Any]] = {}
        self._threads: list[threading.Thread] = []
        self._parallelism: dict[str, int] = {}
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
        # A stage without threads could never run: zero is taken as one.
        self._parallelism = {stage: max(1, wanted.get(stage, 1)) for stage in STAGES}

    def shutdown(self) -> None:
        """End the stage threads; the next call starts new threads."""
        for stage in STAGES if self._threads else ():
            for _ in range(self._parallelism[stage]):
                self._queues[stage].put(None)
        for thread in self._threads:
            thread.join()
        self._threads = []

    def _start(self) -> None:
        self._queues = {stage: SimpleQueue() for stage in STAGES}
        for position, stage in enumerate(STAGES):
            following = STAGES[position + 1] if position + 1 < len(STAGES) else None
            for _ in range(self._parallelism[stage]):
                thread = threading.Thread(
                    target=self._work, args=(stage, following), name=f"micro-{stage}", daemon=True
                )
                thread.start()
                self._threads.append(thread)

    def _work(self, stage: str, following: str | None) -> None:
        queue = self._queues[stage]
        while (item := queue.get()) is not None:
            run, index, value = item
            _place.index = index
            try:
                value = getattr(self.handler, stage)(value)
            except BaseException as error:  # noqa: BLE001 - raised again for the request it belongs to
                run.finish(index, None, error)
                continue
            if following is None:
                run.finish(index, value, None)
            else:
                self._queues[following].put((run, index, value))

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
        if not self._threads:
            self._start()
        size = self.micro_batch_size
        parts = [data[first : first + size] for first in range(0, len(data), size)]
        run = _Run([None] * len(parts), left=len(parts))
        for index, part in enumerate(parts):
            self._queues["preprocess"].put((run, index, part))
        if parts:
            run.done.wait()
        if run.error is not None:
            raise run.error
        return [row for result in run.results for row in result]


def _asks_for(context: Any, mode: str) -> bool:
    try:
        return bool(context.get_request_header(0, mode) == "True")
    except (AttributeError, IndexError):
        return False
