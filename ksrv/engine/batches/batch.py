"""A batch of queued requests: how it is filled, begun and answered.

A batch of one request uses the arrays of the request, without a copy. If several are joined, each tensor is copied once
into its rows of a leased block, and each image is decoded once into its rows. A batch can grow while an earlier batch
still runs: its images are decoded as they arrive. Inputs that are padded are joined last, when the longest row of the
batch is known.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ksrv._native.queue.request_queue import Queue
from ksrv._native.queue.stats import Stats
from ksrv._native.server.request_batch import JoinedRequests
from ksrv.engine.batches.padding import in_order
from ksrv.engine.batches.split import split
from ksrv.engine.batches.streaming import chunk_sender
from ksrv.engine.requests.handle import QueuedRequest
from ksrv.errors import HandlerFailed, KsrvError
from ksrv.request import BatchOutputs, BatchRequest, InferResponse, Tensor

log = logging.getLogger("ksrv.engine")


class RequestBatch(JoinedRequests):
    """A batch as an instance fills and runs it; see `JoinedRequests`."""

    __slots__ = ()

    @property
    def streamed(self) -> bool:
        """Whether a client has got an intermediate answer."""
        return self.emit is not None and self.emit.sent

    def fill(self, handles: list[QueuedRequest], queue: Queue, stats: Stats) -> None:
        """Add requests, and answer the requests that cannot be added."""
        known = len(self.handles)
        if handles and handles[0].sequence is not None:
            handles = _of_open_sequences(handles, queue, stats)
        try:
            failed = self.add(handles)
        except BaseException as error:
            shown: KsrvError
            if isinstance(error, KsrvError):
                shown = error
            else:
                log.error("a batch cannot be assembled", exc_info=error)
                shown = HandlerFailed(f"the batch cannot be assembled: {type(error).__name__}")
            self.keep(self.handles[:known])
            queue.finish(handles, [shown] * len(handles), count=counted_failures(stats))
            return
        if failed:
            refused = [handle for handle, _ in failed]
            errors = [error for _, error in failed]
            queue.finish(refused, errors, count=counted_failures(stats))

    def read_requests(self) -> list[BatchRequest]:
        """Return what a handler sees of the requests."""
        made = []
        row = 0
        for handle in self.handles:
            end = row + handle.rows
            made.append(BatchRequest.of(handle.request, slice(row, end)))
            row = end
        return made

    def _begin(self) -> dict[str, Tensor]:
        """Prepare to run requests that were parsed in Python; return the tensors of the first."""
        first = self.handles[0]
        if first.sequence is not None:
            for handle in self.handles:
                handle.sequence.begun = True
        self.explain = first.request.explain
        self.emit = chunk_sender(self.model.spec, self.handles, self.model.queue)
        return {tensor.name: tensor for tensor in in_order(self.model.spec, first.request)}

    def _answer(self, outputs: BatchOutputs, queue: Queue, stats: Stats, later: bool) -> None:
        """Answer the requests in the general form."""
        timings = {"assemble": self.spent_ns, **outputs.timings}
        answers = split(self.model.spec, self.handles, outputs, timings, self.references)
        self.finish(answers, queue, stats, timings, later=later)

    def finish(
        self,
        answers: Sequence[InferResponse | KsrvError],
        queue: Queue,
        stats: Stats,
        timings: dict[str, int],
        *,
        later: bool,
    ) -> None:
        """Hand the answers of the batch to its requests, and count them.

        Args:
            queue: The queue that the requests came from.
            timings: Nanoseconds by stage.
            later: See `Queue.finish`.
        """
        ended: Mapping[int, InferResponse | KsrvError] = (
            {} if self.emit is None else self.emit.ended
        )

        def count(won: list[bool]) -> None:
            counted, won = list(answers), list(won)
            for index, answer in ended.items():
                won[index], counted[index] = True, answer
            stats.batch(self.handles, counted, won, self.spent_ns, self.ran_ns, timings)

        queue.finish(self.handles, list(answers), later, count)


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


def counted_failures(stats: Stats) -> Callable[[list[bool]], None]:
    """Return a function that counts the failures of requests which `Queue.finish` answers.

    Requests that had ended before are counted as expired or cancelled already.
    """

    def count(won: list[bool]) -> None:
        stats.failed(sum(won))

    return count
