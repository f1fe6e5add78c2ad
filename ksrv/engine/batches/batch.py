"""The interface of batches, and how every batch is filled and its requests are answered."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from ksrv._native.queue.request_queue import Queue
from ksrv._native.queue.stats import Stats
from ksrv.engine.requests.handle import QueuedRequest
from ksrv.errors import HandlerFailed, KsrvError
from ksrv.request import BatchInputs, BatchOutputs, InferResponse

log = logging.getLogger("ksrv.engine")


class RunnableBatch(Protocol):
    """A batch as an instance fills and runs it: a `PendingBatch`, or a compiled `FastBatch`.

    Attributes:
        handles: The requests of the batch, in row order.
        rows: How many rows the batch has.
        spent_ns: How long joining the requests has taken.
        ran_ns: How long the executor took.
    """

    handles: list[QueuedRequest]
    rows: int
    spent_ns: int
    ran_ns: int

    @property
    def attempts(self) -> int:
        """How many executors died of the batch."""

    @property
    def failed(self) -> list[tuple[QueuedRequest, KsrvError]]:
        """Requests that cannot be run, with the reason."""

    @property
    def streamed(self) -> bool:
        """Whether a client has got an intermediate answer."""

    @property
    def ended_before(self) -> Mapping[int, InferResponse | KsrvError]:
        """The answers of requests that ended before their batch, by index."""

    def keep(self, alive: list[QueuedRequest]) -> None:
        """Drop the requests that ended before the batch started."""

    def inputs(self) -> BatchInputs:
        """Return the batch as an executor takes it; the caller holds it until `answer`."""

    def answer(self, outputs: BatchOutputs, queue: Queue, stats: Stats, *, later: bool) -> None:
        """Answer the requests with the outputs of the batch, and count them.

        Args:
            queue: The queue that the requests came from.
            later: See `Queue.finish`.
        """

    def takes(self, handles: list[QueuedRequest]) -> bool:
        """Tell whether requests can be added."""

    def add(self, handles: list[QueuedRequest]) -> None:
        """Append requests of the same group to the batch.

        Args:
            handles: The requests. A request whose images cannot be decoded is put into `failed`.
        """

    def truncate(self, count: int) -> None:
        """Drop all requests but the first `count`, after adding others has failed."""

    def fill(self, handles: list[QueuedRequest], queue: Queue, stats: Stats) -> None:
        """Add requests, and answer the requests that cannot be added."""


def fill(batch: RunnableBatch, handles: list[QueuedRequest], queue: Queue, stats: Stats) -> None:
    """Add requests to a batch, and answer the requests that cannot be added."""
    known = len(batch.handles)
    if handles and handles[0].sequence is not None:
        handles = _of_open_sequences(handles, queue, stats)
    try:
        batch.add(handles)
    except BaseException as error:
        shown: KsrvError
        if isinstance(error, KsrvError):
            shown = error
        else:
            log.error("a batch cannot be assembled", exc_info=error)
            shown = HandlerFailed(f"the batch cannot be assembled: {type(error).__name__}")
        batch.truncate(known)
        queue.finish(handles, [shown] * len(handles), count=counted_failures(stats))
        return
    if batch.failed:
        failed = [handle for handle, _ in batch.failed]
        errors = [error for _, error in batch.failed]
        queue.finish(failed, errors, count=counted_failures(stats))
        batch.failed.clear()


def _of_open_sequences(
    handles: list[QueuedRequest], queue: Queue, stats: Stats
) -> list[QueuedRequest]:
    """Return the requests whose sequences have their state, and answer the others."""
    refused = {
        id(handle): error
        for handle in handles
        if (error := handle.sequence.refusal(handle.request.sequence)) is not None
    }
    if not refused:
        return handles
    failed = [handle for handle in handles if id(handle) in refused]
    errors = [refused[id(handle)] for handle in failed]
    queue.finish(failed, errors, count=counted_failures(stats))
    return [handle for handle in handles if id(handle) not in refused]


def leased(lease: Callable[[int], Any], nbytes: int) -> Any:
    """Return a block for a batch.

    Args:
        lease: Returns a writable block of at least so many bytes.

    Raises:
        HandlerFailed: No memory is left.
    """
    try:
        return lease(nbytes)
    except MemoryError as error:
        raise HandlerFailed("the server has no memory for the batch") from error


def finish(
    batch: RunnableBatch,
    answers: Sequence[InferResponse | KsrvError],
    queue: Queue,
    stats: Stats,
    timings: dict[str, int],
    *,
    later: bool,
) -> None:
    """Hand the answers of a batch to its requests, and count them.

    Args:
        queue: The queue that the requests came from.
        timings: Nanoseconds by stage.
        later: See `Queue.finish`.
    """
    given = list(answers)

    def count(won: list[bool]) -> None:
        told, won = given, list(won)
        if batch.ended_before:
            told = list(given)
            for index, answer in batch.ended_before.items():
                won[index], told[index] = True, answer
        stats.batch(batch.handles, told, won, batch.spent_ns, batch.ran_ns, timings)

    queue.finish(batch.handles, given, later, count)


def counted_failures(stats: Stats) -> Callable[[list[bool]], None]:
    """Return a function that counts the failures of requests which `Queue.finish` answers.

    Requests that had ended before are counted as expired or cancelled already.
    """

    def count(won: list[bool]) -> None:
        stats.failed(sum(won))

    return count
