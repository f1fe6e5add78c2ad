# Needs the GIL: Python objects pass from one thread to another.
"""Batches of queued requests: their arrays and their answers.

The Python form of a fast-path request is made only if a handler reads it, and small answers to
fast-path requests are written to their connections here. Other answers are left to the batch's
model. Requests are joined when the batch is run, which cannot fail, but images are decoded when
their requests are added.
"""

cimport numpy as cnp
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
cimport cython
from libc.stddef cimport ptrdiff_t
from libc.stdint cimport uint64_t

from native.base.clock cimport now_ns
from native.infer.fast_request cimport FAST_OUTPUTS
from native.queue.request cimport Request as CRequest
from native.server.fast_response cimport (
    FastReply, ReplyPart, ReplyStage, answer_batch, set_row_bytes,
)
from native.tensor.datatype cimport datatype_of, item_size_of

from ksrv._native.batch.batch cimport NOT_RUN, StageTimes
from ksrv._native.queue.request_handle cimport NativeHandle
from ksrv._native.server.joined_rows cimport (
    ksrv_has_images, ksrv_joined_rows, ksrv_needs_padding, ksrv_pads, ksrv_received_tensors,
)
from ksrv._native.server.model_endpoint cimport FastHandle
from ksrv._native.tensor.tensor cimport Tensor

from ksrv._native.tensor.aliasing_check import InputReferences

if not cython.compiled:
    from collections.abc import Callable, Mapping
    from typing import Any

cnp.import_array()

cdef extern from "base/small_vector.hpp" nogil:
    cdef cppclass Requests "ksrv::SmallVector<ksrv::Request *, 32>":
        CRequest **extend(size_t count) noexcept

    cdef cppclass Marks "ksrv::SmallVector<unsigned char, 32>":
        unsigned char *extend(size_t count) noexcept

cdef enum:
    STAGES = 16


@cython.final
cdef class RequestBatch(ExecutorInputs):
    """A batch of queued requests, which is also the input of an executor.

    Args:
        model: The `InstanceHost`, complete when the first batch is joined.
        lease: Returns a writable block of at least the given size.
        room: The most rows that the batch may grow to. Its blocks are leased for that many.

    Attributes:
        handles: The requests of the batch, in row order.
        rows: How many rows the batch has. 0 until requests were added or `inputs` was called.
        attempts: How many executors died while they ran the batch.
        spent_ns: How long joining the requests has taken.
        ran_ns: How long the executor took.
    """

    references: InputReferences | None
    handles: list[Any]

    def __init__(self, object model, lease: Callable[[int], Any], Py_ssize_t room=0):
        self.model = model
        self.lease = lease
        self.room = room
        self.handles = []

    def add(self, list handles not None: list[Any]) -> list[tuple[Any, Any]]:
        """Add requests with the same batch key.

        Returns:
            The requests that were not added because an image cannot be decoded, with their errors.
        """
        cdef int64_t began = now_ns()
        cdef bint joins = False
        cdef list failed = []
        cdef set dropped
        for handle in handles:
            joins = joins or ksrv_has_images(handle)
        self.handles.extend(handles)
        self.rows += _rows_of(handles)
        # Padded rows are joined last, when the longest row of the batch is known.
        if joins or (len(self.handles) > 1 and not ksrv_pads(self.handles[0])):
            failed = self._join()
            self.spent_ns += now_ns() - began
        if failed:
            dropped = {id(handle) for handle, _ in failed}
            self.keep([handle for handle in self.handles if id(handle) not in dropped])
        return failed

    def keep(self, list alive not None: list[Any]) -> None:
        """Drop the requests that are not in `alive`."""
        cdef set kept
        if len(alive) == len(self.handles):
            return
        if not alive:
            self.joined_rows = None
            self.joined = 0
        elif self.joined:
            kept = {id(handle) for handle in alive}
            joined = self.handles[:self.joined]
            self.joined_rows.keep(joined, kept)
            self.joined = 0
            for handle in joined:
                self.joined += id(handle) in kept
        self.handles = list(alive)
        self.rows = _rows_of(self.handles)

    cdef list _join(self):
        cdef list failed
        cdef bint pads = ksrv_pads(self.handles[0])
        if pads:  # images were joined before the longest row of the batch was known
            self.joined_rows = None
            self.joined = 0
        if self.joined_rows is None:
            self.joined_rows = ksrv_joined_rows(
                self.model, self.lease, self.handles,
                <uint64_t>(self.rows if pads else max(self.room, self.rows)),
            )
        failed = self.joined_rows.add(self.handles[self.joined:])
        self.joined = len(self.handles)
        return failed

    @property
    def requests(self) -> list[Any]:
        """The requests in row order, built on first use."""
        if self.read is None:
            self.read = self.model.read_requests(self.handles)
        return self.read

    def lengths(self) -> list[tuple[Mapping[str, int], int]]:
        """See `ExecutorInputs.lengths`. Builds no requests."""
        return [(handle.lengths, handle.rows) for handle in self.handles]

    def inputs(self) -> ExecutorInputs:
        """Join the rows and return the batch. The caller keeps it alive until `answer`."""
        self.prepare(True)
        return self

    cdef int prepare(self, bint counts_references) except -1:
        cdef int64_t began
        cdef bint fast = type(self.handles[0]) is FastHandle
        cdef dict received = None
        self.read = self.references = None
        if self.dispatched is not None:
            self.tensors = {}
            self.spent_ns = self.dispatched.assemble_ns
            return 0
        if not fast:
            received = self.model.begin(self)
        if (self.joined == 0 and len(self.handles) == 1
                and not ksrv_needs_padding(self.handles[0], self.model)):
            self.tensors = ksrv_received_tensors(self.handles[0]) if fast else received
            self.rows = (<NativeHandle>self.handles[0]).native.rows
        else:
            if self.joined < len(self.handles):
                began = now_ns()
                self.rows = _rows_of(self.handles)
                for _, error in self._join():
                    raise error
                self.spent_ns += now_ns() - began
            self.tensors = self.joined_rows.tensors(self.handles)
        if counts_references or not fast:
            self.references = InputReferences(list(self.tensors.values()))
        return 0

    def answer(
        self, ExecutorOutputs outputs not None, Queue queue not None, Stats stats not None, *,
        bint later
    ) -> None:
        """Answer the requests with the outputs of the batch, and count them.

        Args:
            queue: The queue that the requests came from.
            later: See `Queue.finish`. Small answers are written to their connections at once.
        """
        self.reply(outputs, queue, stats, later)

    cdef bint reply(self, ExecutorOutputs outputs, Queue queue, Stats stats, bint later) except -1:
        if (outputs.is_bare() and _are_fast(self.handles)
                and _reply(self, outputs, queue, stats)):
            return True
        self.model.answer(self, outputs, stats, later)
        return False


cdef RequestBatch ksrv_new_batch(object model, object lease, list handles):
    cdef RequestBatch made = RequestBatch.__new__(RequestBatch)
    made.model = model
    made.lease = lease
    made.handles = handles
    return made


cdef Py_ssize_t _rows_of(list handles) noexcept:
    cdef Py_ssize_t rows = 0
    for handle in handles:
        rows += (<NativeHandle>handle).native.rows
    return rows


cdef bint _are_fast(list handles) noexcept:
    """Whether all requests of a batch are fast-path requests."""
    for handle in handles:
        if type(handle) is not FastHandle:
            return False
    return True


cdef struct Parts:
    # The outputs of a batch. The memory belongs to arrays that the caller keeps alive.
    ReplyPart parts[FAST_OUTPUTS]
    int count


cdef bint _add_part(Parts *parts, Tensor tensor, uint64_t rows, bint alone) except -1:
    """Add an output. False if it cannot be divided into rows without a copy."""
    cdef ReplyPart *part = &parts.parts[parts.count]
    cdef Py_ssize_t length = 0
    cdef object data = tensor.data
    cdef cnp.ndarray array
    if parts.count == FAST_OUTPUTS or tensor.its_parameters or not cnp.PyArray_CheckExact(data):
        return False
    array = <cnp.ndarray>data
    if not cnp.PyArray_IS_C_CONTIGUOUS(array) or not cnp.PyArray_ISNOTSWAPPED(array):
        return False
    parts.count += 1
    part.data = <const unsigned char *>cnp.PyArray_DATA(array)
    part.shape = <const ptrdiff_t *>cnp.PyArray_DIMS(array)
    part.rank = cnp.PyArray_NDIM(array)
    if not set_row_bytes(part, <uint64_t>cnp.PyArray_NBYTES(array), rows, alone):
        return False
    part.name = PyUnicode_AsUTF8AndSize(tensor.name, &length)
    part.name_length = <size_t>length
    part.datatype = PyUnicode_AsUTF8AndSize(tensor.datatype, &length)
    part.datatype_length = <size_t>length
    part.type = datatype_of(part.datatype, part.datatype_length)
    return item_size_of(part.type) == <size_t>cnp.PyArray_ITEMSIZE(array)


cdef void _put_stage(
    ReplyStage *stage, const char *name, size_t length, uint64_t nanoseconds
) noexcept:
    stage.name = name
    stage.length = length
    stage.nanoseconds = nanoseconds


cdef int _stages(ReplyStage *stages, RequestBatch batch, ExecutorOutputs outputs) except -1:
    """Write the stages and their times. Return their number, at most STAGES."""
    cdef const StageTimes *times = &outputs.times
    cdef const char *text
    cdef Py_ssize_t length = 0
    cdef int count = 1
    _put_stage(&stages[0], b"assemble", 8, batch.spent_ns)
    if outputs.timings_by_stage is None:
        if times.preprocess != NOT_RUN:
            _put_stage(&stages[count], b"preprocess", 10, times.preprocess)
            count += 1
        if times.inference != NOT_RUN:
            _put_stage(&stages[count], b"inference", 9, times.inference)
            count += 1
        if times.postprocess != NOT_RUN:
            _put_stage(&stages[count], b"postprocess", 11, times.postprocess)
            count += 1
        return count
    for name, nanoseconds in outputs.timings_by_stage.items():
        text = PyUnicode_AsUTF8AndSize(name, &length)
        _put_stage(&stages[count], text, <size_t>length, nanoseconds)
        count += 1
        if count == STAGES:
            break
    return count


cdef bint _reply(RequestBatch batch, ExecutorOutputs outputs, Queue queue, Stats stats) except -1:
    """If the answers of a batch are small, send and count them.

    Returns:
        Whether requests were answered, except for expired requests; see `answer_batch`.
    """
    cdef Parts parts
    cdef ReplyStage stages[STAGES]
    cdef FastReply reply
    cdef uint64_t rows = 0
    cdef size_t i, count = <size_t>len(batch.handles)
    cdef Requests requests_room
    cdef Marks won_room
    cdef CRequest **requests = requests_room.extend(count)
    cdef unsigned char *won = won_room.extend(count)
    if requests == NULL or won == NULL:
        raise MemoryError
    for i in range(count):
        requests[i] = (<NativeHandle>batch.handles[i]).native
        rows += requests[i].rows
    parts.count = 0
    for tensor in outputs.tensors:
        if not _add_part(&parts, <Tensor?>tensor, rows, count == 1):
            return False
    reply.parts = parts.parts
    reply.part_count = parts.count
    reply.stages = stages
    reply.stage_count = _stages(stages, batch, outputs)
    reply.ran_ns = <uint64_t>batch.ran_ns
    return reply.stage_count < STAGES and answer_batch(
        queue.queue, &stats.sums, requests, count, won, reply
    )
