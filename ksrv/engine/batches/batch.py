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
from ksrv._native.server.request_batch import RequestBatch
from ksrv.engine.batches.padding import RowPadding, in_order
from ksrv.engine.batches.split import split
from ksrv.engine.batches.streaming import chunk_sender
from ksrv.engine.requests.handle import QueuedRequest
from ksrv.errors import HandlerFailed, KsrvError
from ksrv.images.preparer import ImagePreparer
from ksrv.model.spec import ModelSpec
from ksrv.request import BatchOutputs, BatchRequest, InferResponse, Tensor

log = logging.getLogger("ksrv.engine")


class BatchModel:
    """Fills, begins and answers the batches of a model. The base of `InstanceHost`.

    Attributes:
        spec: The description, completed once the model is loaded.
        queue: The queue of the model's requests.
        images: How the images of each image input are prepared, by input name.
        padding: How rows of different lengths are padded.
    """

    spec: ModelSpec
    queue: Queue
    images: dict[str, ImagePreparer]
    padding: RowPadding

    def fill(self, batch: RequestBatch, handles: list[QueuedRequest], stats: Stats) -> None:
        """Add requests to a batch, and answer the requests that cannot be added."""
        known = len(batch.handles)
        if handles and handles[0].sequence is not None:
            handles = self._of_open_sequences(handles, stats)
        try:
            failed = batch.add(handles)
        except BaseException as error:
            shown: KsrvError
            if isinstance(error, KsrvError):
                shown = error
            else:
                log.error("a batch cannot be assembled", exc_info=error)
                shown = HandlerFailed(f"the batch cannot be assembled: {type(error).__name__}")
            batch.keep(batch.handles[:known])
            self._refuse([(handle, shown) for handle in handles], stats)
            return
        self._refuse(failed, stats)

    def read_requests(self, handles: list[QueuedRequest]) -> list[BatchRequest]:
        """Return what a handler sees of the requests of a batch."""
        made = []
        row = 0
        for handle in handles:
            end = row + handle.rows
            made.append(BatchRequest.of(handle.request, slice(row, end)))
            row = end
        return made

    def begin(self, batch: RequestBatch) -> dict[str, Tensor]:
        """Prepare to run requests that were parsed in Python; return the tensors of the first."""
        first = batch.handles[0]
        if first.sequence is not None:
            for handle in batch.handles:
                handle.sequence.begun = True
        batch.explain = first.request.explain
        batch.emit = chunk_sender(self.spec, batch.handles, self.queue)
        return {tensor.name: tensor for tensor in in_order(self.spec, first.request)}

    def answer(self, batch: RequestBatch, outputs: BatchOutputs, stats: Stats, later: bool) -> None:
        """Answer the requests of a batch in the general form."""
        timings = {"assemble": batch.spent_ns, **outputs.timings}
        answers = split(self.spec, batch.handles, outputs, timings, batch.references)
        self.finish(batch, answers, stats, timings, later=later)

    def finish(
        self,
        batch: RequestBatch,
        answers: Sequence[InferResponse | KsrvError],
        stats: Stats,
        timings: dict[str, int],
        *,
        later: bool,
    ) -> None:
        """Hand the answers of a batch to its requests, and count them.

        Args:
            timings: Nanoseconds by stage.
            later: See `Queue.finish`.
        """
        ended: Mapping[int, InferResponse | KsrvError] = (
            {} if batch.emit is None else batch.emit.ended
        )

        def count(won: list[bool]) -> None:
            counted, won = list(answers), list(won)
            for index, answer in ended.items():
                won[index], counted[index] = True, answer
            stats.batch(batch.handles, counted, won, batch.spent_ns, batch.ran_ns, timings)

        self.queue.finish(batch.handles, list(answers), later, count)

    def _of_open_sequences(self, handles: list[QueuedRequest], stats: Stats) -> list[QueuedRequest]:
        """Return the requests whose sequences have their state, and answer the others."""
        found = [(handle, handle.sequence.refusal(handle.request.sequence)) for handle in handles]
        self._refuse([(handle, error) for handle, error in found if error is not None], stats)
        return [handle for handle, error in found if error is None]

    def _refuse(self, failed: list[tuple[QueuedRequest, KsrvError]], stats: Stats) -> None:
        if failed:
            handles = [handle for handle, _ in failed]
            errors = [error for _, error in failed]
            self.queue.finish(handles, errors, count=counted_failures(stats))


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
