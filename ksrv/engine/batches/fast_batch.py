"""A batch of fast-path requests, which the native HTTP server queued without Python.

Its arrays come straight from the received blocks, joining it cannot fail, and the requests
themselves are made only when a handler reads them.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

from ksrv._native.queue.request_queue import Queue
from ksrv._native.queue.stats import Stats
from ksrv._native.server import model_endpoint
from ksrv._native.tensor import aliasing_check
from ksrv.engine.batches.batch import arrays_of, finish
from ksrv.engine.batches.split import split
from ksrv.engine.host import InstanceHost
from ksrv.engine.request_handle import QueuedRequest
from ksrv.request import BatchInputs, BatchOutputs, BatchRequest


class FastBatches:
    """Makes the batches of fast-path requests of one instance.

    Args:
        host: The model version; its description is complete.
        lease: Returns a writable block of at least so many bytes.

    Attributes:
        copied: Whether the last batch's answers were copied out of its outputs. Then the references
            to the inputs of the next batch are not counted; where its answers cannot be copied, an
            answer that is made of its inputs is taken for shared.
    """

    def __init__(self, host: InstanceHost, lease: Callable[[int], Any]) -> None:
        self.host = host
        self.lease = lease
        self.copied = False


class FastBatch(BatchInputs):
    """The requests of one batch, all of them from the fast path; also what an executor takes.

    `attempts` is always 0: after a death the requests are run again in a `PendingBatch`.

    Args:
        handles: The requests, in row order.
        source: The maker of the instance's batches.

    Attributes:
        rows: How many rows the batch has; 0 until `inputs` was called.
        spent_ns: How long joining the requests took; 0 for a single request, which is not copied.
    """

    __slots__ = ("_arrays", "_references", "_requests", "_source", "handles", "ran_ns", "spent_ns")

    attempts = 0
    explain = False
    emit = None
    streamed = False

    def __init__(self, handles: list[QueuedRequest], source: FastBatches) -> None:
        self.handles = handles
        self._source = source
        self._requests: FastRequests | None = None
        self.rows = 0
        self.spent_ns = 0
        self.ran_ns = 0

    def keep(self, alive: list[QueuedRequest]) -> None:
        """See `RunnableBatch.keep`."""
        self.handles = alive

    def inputs(self) -> BatchInputs:
        """See `RunnableBatch.inputs`."""
        if len(self.handles) == 1:
            self.tensors, self.rows = model_endpoint.inputs(self.handles, self._source.lease)
        else:
            began = time.monotonic_ns()
            self.tensors, self.rows = model_endpoint.inputs(self.handles, self._source.lease)
            self.spent_ns = time.monotonic_ns() - began
        if not self._source.copied:
            self._arrays = arrays_of(self)
            self._references = aliasing_check.counts(self._arrays)
        return self

    def answer(self, outputs: BatchOutputs, queue: Queue, stats: Stats, *, later: bool) -> None:
        """See `RunnableBatch.answer`; small answers are written to their connections at once."""
        source, handles, timings = self._source, self.handles, outputs.timings
        counted = not source.copied
        if not (outputs.failures or outputs.headers or outputs.parameters):
            won = model_endpoint.reply(queue, handles, outputs.tensors, self.spent_ns, timings)
            source.copied = won is not None
            if won is not None:
                stats.batch(handles, None, won, self.spent_ns, self.ran_ns, timings)
                return
        timings = {"assemble": self.spent_ns, **timings}
        arrays, references = (self._arrays, self._references) if counted else ([], {})
        answers = split(source.host.spec, handles, outputs, timings, arrays, references)
        finish(self, answers, queue, stats, timings, later=later)

    @property
    def requests(self) -> "FastRequests":  # type: ignore[override]
        """See `BatchInputs`; made when a handler reads them."""
        if self._requests is None:
            self._requests = FastRequests(self.handles)
        return self._requests


class FastRequests(Sequence[BatchRequest]):
    """`BatchInputs.requests` of fast-path requests, made when a handler reads them.

    Args:
        handles: The requests, in row order.
    """

    __slots__ = ("_handles", "_made")

    def __init__(self, handles: list[QueuedRequest]) -> None:
        self._handles = handles
        self._made: list[BatchRequest] | None = None

    def _all(self) -> list[BatchRequest]:
        if self._made is None:
            self._made = []
            row = 0
            for handle in self._handles:
                end = row + handle.rows
                self._made.append(BatchRequest.of(handle.request, slice(row, end)))
                row = end
        return self._made

    def __len__(self) -> int:
        return len(self._handles)

    @overload
    def __getitem__(self, place: int) -> BatchRequest: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[BatchRequest]: ...
    def __getitem__(self, place: int | slice) -> BatchRequest | Sequence[BatchRequest]:
        return self._all()[place]

    def __iter__(self) -> Iterator[BatchRequest]:
        return iter(self._all())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._all() == list(other)
