"""Batches of fast-path requests, which the native HTTP server queued without Python.

`ksrv._native.server.fast_batch` has them; here is what they need of the general way: the requests, when a
handler reads them, and the answers that are large or not of the common form.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from ksrv._native.queue.request_queue import Queue
from ksrv._native.queue.stats import Stats
from ksrv._native.server.fast_batch import FastBatch, FastBatches
from ksrv.engine.batches.batch import fill, finish, leased
from ksrv.engine.batches.split import split
from ksrv.engine.requests.handle import QueuedRequest
from ksrv.model.spec import ModelSpec
from ksrv.request import BatchOutputs, BatchRequest


def fast_batches(spec: Callable[[], ModelSpec], lease: Callable[[int], Any]) -> FastBatches:
    """Return the maker of the batches of one instance.

    Args:
        spec: Returns the model's description, which is complete when the first batch is answered.
        lease: Returns a writable block of at least so many bytes.
    """

    def answer(
        batch: FastBatch, outputs: BatchOutputs, queue: Queue, stats: Stats, later: bool
    ) -> None:
        timings = {"assemble": batch.spent_ns, **outputs.timings}
        answers = split(spec(), batch.handles, outputs, timings, batch.references)
        finish(batch, answers, queue, stats, timings, later=later)

    return FastBatches(fill, partial(leased, lease), read_requests, answer)


def read_requests(handles: list[QueuedRequest]) -> list[BatchRequest]:
    """Return what a handler sees of requests."""
    made = []
    row = 0
    for handle in handles:
        end = row + handle.rows
        made.append(BatchRequest.of(handle.request, slice(row, end)))
        row = end
    return made
