# Needs the GIL: one thread at a time runs an instance.
"""Runs the batches of an instance. Compiled, because every request takes this path.

`InstanceRunner` is the base of `ksrv.engine.instances.instance.Instance`, which takes the batches
from the queue and decides about failures. A batch arrives here in one of three ways: `run_inline`
from the thread that submitted its requests, `_run` from the instance's thread, or
`_finish_dispatched` after a handler process has run the batch without Python. All end in
`run_and_answer`.
"""

from cpython.list cimport PyList_GET_SIZE
cimport cython
from libc.stdint cimport int64_t, uint64_t

from native.base.clock cimport now_ns

from ksrv._native.queue.request_handle cimport NativeHandle
from ksrv._native.queue.request_queue cimport Queue
from ksrv._native.queue.stats cimport Stats
from ksrv._native.server.model_endpoint cimport FastHandle
from ksrv._native.server.request_batch cimport RequestBatch, ksrv_has_images, ksrv_new_batch

if not cython.compiled:
    from collections.abc import Callable
    from typing import Any

    from ksrv._native.server.batch_spans import ModelTracing
    from ksrv.errors import KsrvError

QUICK_NS = 1_000_000
"""A run that takes less than this earns inline credit. With enough credit, the requests of this
instance are run on the threads that submit them."""
MAX_INLINE_CREDIT = 2000
FIRST_UNSHARED_KEY: int = 1 << 62
"""Batch keys from here on are never shared: each marks a request that runs alone, because its
images are slow to decode."""

cdef int64_t QUICK = QUICK_NS, MOST_CREDIT = MAX_INLINE_CREDIT
cdef uint64_t FIRST_UNSHARED = FIRST_UNSHARED_KEY


cdef class InstanceRunner:
    """Runs the batches of one instance, on the thread that holds its slot.

    Attributes:
        tracing: Which requests are traced, or None.
        busy_since: The monotonic clock in nanoseconds when the running batch began, or 0.
        inline_credit: Earned by quick runs; see `Instance._note_pace`.
    """

    cdef readonly Stats stats
    cdef public object tracing
    cdef readonly int64_t busy_since
    cdef public int64_t inline_credit
    cdef readonly Queue queue
    cdef readonly object executor
    cdef readonly size_t slot
    cdef bint is_process
    cdef object model  # the `InstanceHost`
    cdef object lease  # returns a block for rows; see `RequestBatch`
    # The last batch's answers were copied from its outputs. Then the references to the inputs of
    # the next batch need not be counted: that is needed only to send outputs without a copy.
    cdef bint copied

    tracing: ModelTracing | None

    def __init__(
        self, Queue queue not None, object executor, Stats stats not None, object model: Any,
        lease: Callable[[int], Any],
    ):
        self.queue = queue
        self.model = model
        self.lease = lease
        self.executor = executor
        # Only executors with a handler process can end a handler at its deadline.
        self.is_process = executor.keeps_deadlines
        self.stats = stats
        self.slot = queue.add_slot()

    # Methods of `Instance` that this class calls. So are `_decode_slow` and `_note_pace`.

    def _deadline(self, list handles: list[Any], int64_t began) -> int | None:
        raise NotImplementedError

    def _failure_of(self, object batch, error: BaseException) -> KsrvError | None:
        raise NotImplementedError

    def _answer_failed(self, object batch, failure: KsrvError, bint later) -> None:
        raise NotImplementedError

    def _fail(self, list handles: list[Any], error: BaseException) -> None:
        raise NotImplementedError

    def run_inline(self, list handles not None: list[Any]) -> None:
        """Run requests on the thread that submitted them, which has claimed this instance's slot.

        Args:
            handles: The requests. They may still be open afterwards: if the executor dies, another
                instance runs them again.
        """
        try:
            if (<NativeHandle>handles[0]).native.batch_key >= FIRST_UNSHARED:
                self._decode_slow(handles)
            else:
                batch = self.batch_of(handles)
                if batch is not None:
                    self.run_batch(batch, True)
        finally:
            if self.is_process and not self.executor.alive:
                self.queue.queue.nudge(self.slot)  # the instance's thread starts a new process
            self.queue.queue.return_slot(self.slot)

    def new_batch(self) -> RequestBatch:
        """Return an empty batch whose blocks are leased from this instance's executor."""
        return ksrv_new_batch(self.model, self.lease, [])

    def _batch_of(self, list handles not None: list[Any]) -> Any:
        """Return a batch of the requests, or None if none of them could be added."""
        return self.batch_of(handles)

    cdef RequestBatch batch_of(self, list handles):
        """See `_batch_of`, which Python calls."""
        cdef RequestBatch batch
        try:
            if _are_joined_later(handles):
                return ksrv_new_batch(self.model, self.lease, handles)
            batch = ksrv_new_batch(self.model, self.lease, [])
            self.model.fill(batch, handles, self.stats)
            return batch if batch.handles else None
        except BaseException as error:
            self._fail(handles, error)  # fail the batch, but not the thread
            return None

    def _run(self, RequestBatch batch, bint inline) -> None:
        """Run a batch and answer its requests. An inline run wakes their threads at once."""
        self.run_batch(batch, inline)

    cdef int run_batch(self, RequestBatch batch, bint inline) except -1:
        """See `_run`, which Python calls."""
        cdef list handles = batch.handles
        cdef list alive
        try:
            # An inline batch has been in the running state since the push.
            alive = handles if inline else self.queue.start(handles)
            if PyList_GET_SIZE(alive) != PyList_GET_SIZE(handles):
                batch.keep(alive)
            if alive:
                self.execute(batch, not inline)
        except BaseException as error:
            self._fail(handles, error)
        return 0

    def _calling_batch(self, list handles not None: list[Any]) -> Any:
        """Return a batch without tensors for requests that run in the handler's process.

        `Instance` uses it for the batch's calls to other models.
        """
        cdef RequestBatch batch = ksrv_new_batch(self.model, self.lease, handles)
        batch.tensors = {}
        return batch

    def _finish_dispatched(self, object dispatched) -> None:
        """Finish a batch that was dispatched to the handler's process without Python."""
        cdef RequestBatch batch = self._calling_batch(dispatched.handles)
        batch.dispatched = dispatched
        try:
            self.execute(batch, True)
        except BaseException as error:
            self._fail(dispatched.handles, error)

    cdef int execute(self, RequestBatch batch, bint later) except -1:
        """Run a batch within its spans of a trace, if traces are recorded."""
        cdef object spans = None if self.tracing is None else self.tracing.spans_of(batch)
        try:
            self.run_and_answer(batch, later, spans)
        finally:
            if spans is not None:
                spans.end()
        return 0

    cdef int run_and_answer(self, RequestBatch batch, bint later, object spans) except -1:
        """Join the rows of a batch, run it, and answer its requests (`later` as `Queue.finish`)."""
        cdef int64_t began = now_ns()
        cdef int64_t ran_ns = 0
        cdef object failure = None
        self.busy_since = began
        try:
            batch.prepare(not self.copied)
            if batch.dispatched is not None:
                began = batch.dispatched.began_ns
                outputs = batch.dispatched.ring.batches.collect(batch.dispatched, batch)
            else:
                deadline = self._deadline(batch.handles, began) if self.is_process else None
                if spans is None:
                    outputs = self.executor.run(batch, deadline)
                else:
                    with spans:
                        outputs = self.executor.run(batch, deadline)
                    spans.finish(outputs)
            ran_ns = batch.ran_ns = now_ns() - began
            self.copied = batch.reply(outputs, self.queue, self.stats, later)
        except BaseException as error:
            if spans is not None:
                spans.finish(error)
            failure = self._failure_of(batch, error)
            if failure is None:
                return 0  # its requests are queued again
        finally:
            self.busy_since = 0
            if ran_ns == 0:  # the run failed
                ran_ns = batch.ran_ns = now_ns() - began
        if failure is not None:
            self._answer_failed(batch, failure, later)
        if self.inline_credit < MOST_CREDIT or ran_ns >= QUICK:  # else the credit cannot change
            self._note_pace(ran_ns, batch.spent_ns)
        return 0


cdef bint _are_joined_later(list handles) except -1:
    """Whether adding the requests to a batch decodes nothing, and cannot fail."""
    for handle in handles:
        if type(handle) is not FastHandle or ksrv_has_images(handle):
            return False
    return True
