# Needs the GIL: Python objects pass from one thread to another.
"""Batches of only fast-path requests: their arrays, in the received blocks, and their answers.

Python requests are made only if a handler reads them, and small answers are written to their
connections here. Everything else is left to the general path in `ksrv.engine.batches`. A batch
without images joins its requests when it is run, which cannot fail. Images are decoded before.
"""

from collections.abc import Sequence
from typing import Any

from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.stdint cimport int64_t, uint64_t
from libcpp cimport bool as cbool

cimport cython
cimport numpy as cnp

from ksrv._native.batch.batch cimport NOT_RUN, BatchOutputs, StageTimes
from ksrv._native.tensor.datatype cimport Datatype, datatype_of, item_size_of
from ksrv._native.server.fast_rows cimport (
    Requests, ksrv_fast_rows, ksrv_has_images, ksrv_needs_padding, ksrv_pads, ksrv_received_tensors,
)
from ksrv._native.server.model_endpoint cimport FastHandle, ModelEndpoint
from ksrv._native.server.server cimport FAST_OUTPUTS, FastRequest
from ksrv._native.queue.request_handle cimport CRequest, NativeHandle
from ksrv._native.queue.request_queue cimport CQueue, Queue
from ksrv._native.queue.stats cimport Stats, Sums
from ksrv._native.tensor.tensor cimport Tensor

from ksrv._native.tensor.aliasing_check import InputReferences

if not cython.compiled:
    from collections.abc import Callable, Iterator, Mapping

cnp.import_array()

cdef extern from "server/fast_response.hpp" namespace "ksrv" nogil:
    cdef struct ReplyPart:
        const char *name
        const char *datatype
        size_t name_length
        size_t datatype_length
        Datatype type
        const unsigned char *data
        const Py_ssize_t *shape
        int rank
        int64_t row_bytes

    cdef struct ReplyStage:
        const char *name
        size_t length
        uint64_t nanoseconds

    cdef struct BatchReply:
        const ReplyPart *parts
        int part_count
        const ReplyStage *stages
        int stage_count
        uint64_t ran_ns

    cbool set_row_bytes(ReplyPart *part, uint64_t nbytes, uint64_t rows, cbool alone) noexcept

    cbool answer_batch(
        CQueue *queue, Sums *sums, CRequest **requests, size_t count, unsigned char *won,
        const BatchReply &reply
    ) noexcept

cdef extern from "base/clock.hpp" namespace "ksrv" nogil:
    int64_t now_ns() noexcept

cdef extern from "base/small_vector.hpp" nogil:
    cdef cppclass Marks "ksrv::SmallVector<unsigned char, 32>":
        unsigned char *extend(size_t count) noexcept

cdef enum:
    STAGES = 16


@cython.final
cdef class FastBatches:
    """Makes the batches of fast-path requests for one instance.

    Args:
        fill: Adds requests to a batch and answers requests that cannot be added. Takes the batch,
            the requests, their queue and their statistics.
        lease: Returns a writable block of at least the given size.
        read_requests: Returns the requests that a handler sees, given their handles.
        answer_generally: Answers a batch in the general form. Takes the batch and then the
            arguments of `FastBatch.answer`.
    """

    # `copied`: the last batch's answers were copied from its outputs. Then the references to the
    # inputs of the next batch are not counted. If its answers cannot be copied, an answer made of
    # its inputs counts as shared.

    def __init__(
        self,
        fill not None: Callable[[FastBatch, list[Any], Queue, Stats], None],
        lease not None: Callable[[int], Any],
        read_requests not None: Callable[[list[Any]], list[Any]],
        answer_generally not None: Callable[[FastBatch, BatchOutputs, Queue, Stats, bool], None],
    ):
        self.fill = fill
        self.lease = lease
        self.read_requests = read_requests
        self.answer_generally = answer_generally

    def new_batch(self, Py_ssize_t room) -> FastBatch:
        """Return an empty batch.

        Args:
            room: The most rows of the batch. Its block is leased for that many.
        """
        cdef FastBatch made = ksrv_fast_batch([], self)
        made.room = room
        return made


@cython.final
cdef class FastRequests:
    """`BatchInputs.requests` of fast-path requests, as a `Sequence`. Built on first use."""

    cdef list read(self):
        if self.made is None:
            self.made = self.read_requests(self.handles)
        return self.made

    def __len__(self):
        return len(self.handles)

    def __getitem__(self, object place) -> Any:
        return self.read()[place]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.read())

    def __eq__(self, other):
        return isinstance(other, Sequence) and self.read() == list(other)

    def __repr__(self):
        return repr(self.read())

    def index(self, *given: Any) -> int:
        """Return the index of a request; see `Sequence.index`."""
        return self.read().index(*given)

    def count(self, object request) -> int:
        """Return how often a request occurs; see `Sequence.count`."""
        return self.read().count(request)


Sequence[Any].register(FastRequests)


@cython.final
cdef class FastBatch(BatchInputs):
    """A batch of only fast-path requests, which is also the input of an executor.

    `failed` has requests that cannot be run, with the reason. `rows` is 0 until requests were added
    or `inputs` was called. See `ksrv.engine.batches.batch.RunnableBatch`.
    """

    failed: list[tuple[Any, Any]]
    references: InputReferences | None
    handles: list[Any]

    @property
    def attempts(self) -> int:
        """Always 0, because after the death of an executor the batch is run as a `PendingBatch`."""
        return 0

    @property
    def streamed(self) -> bool:
        """Always false, because fast-path requests do not stream."""
        return False

    @property
    def ended_before(self) -> dict[int, Any]:
        """Always empty, because fast-path requests do not stream."""
        return {}

    def takes(self, list handles not None: list[Any]) -> bool:
        """Return whether requests can be added, because they are fast-path requests."""
        return ksrv_are_fast(handles)

    def add(self, list handles not None: list[Any]) -> None:
        """Add requests with the same batch key.

        Args:
            handles: The requests. If the images of a request cannot be decoded, it is added to
                `failed`.
        """
        cdef int64_t began = now_ns()
        cdef bint joins = False
        for handle in handles:
            joins = joins or ksrv_has_images(handle)
        self.handles.extend(handles)
        self.rows += _rows_of(handles)
        # Padded rows are joined last, when the longest row of the batch is known.
        if joins or (len(self.handles) > 1 and not ksrv_pads(self.handles[0])):
            self._join()
        self.spent_ns += now_ns() - began

    def fill(self, list handles not None: list[Any], Queue queue not None, stats: Stats) -> None:
        """Add requests, and answer requests that cannot be added."""
        self.source.fill(self, handles, queue, stats)

    def truncate(self, Py_ssize_t count) -> None:
        """Drop all but the first `count` requests, because adding the others has failed."""
        self.keep(self.handles[:count])
        self.failed = []

    def keep(self, list alive not None: list[Any]) -> None:
        """See `RunnableBatch.keep`."""
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

    cdef int _join(self) except -1:
        cdef NativeHandle first = self.handles[0]
        cdef list new, bad
        cdef Py_ssize_t before = self.joined
        cdef Py_ssize_t room = self.rows if ksrv_pads(first) else max(self.room, self.rows)
        if self.joined_rows is None:
            self.joined_rows = ksrv_fast_rows(
                <ModelEndpoint>(<FastRequest *>first.native).signature.endpoint,
                self.source.lease, <uint64_t>room,
            )
        new = self.handles[before:]
        bad = self.joined_rows.add(new)
        self.joined = len(self.handles)
        if bad:
            self.failed += bad
            failed = {id(handle) for handle, _ in bad}
            self.keep([handle for handle in self.handles if id(handle) not in failed])
        return 0

    @property
    def requests(self) -> FastRequests:
        """The requests in row order, built on first use."""
        if self.read is None:
            self.read = FastRequests.__new__(FastRequests)
            self.read.handles = self.handles
            self.read.read_requests = self.source.read_requests
        return self.read

    def lengths(self) -> list[tuple[Mapping[str, int], int]]:
        """See `BatchInputs.lengths`. Builds no requests."""
        return [(handle.lengths, handle.rows) for handle in self.handles]

    def inputs(self) -> BatchInputs:
        """See `RunnableBatch.inputs`."""
        self.prepare()
        return self

    cdef int prepare(self) except -1:
        cdef int64_t began
        self.read = self.references = None
        if self.dispatched is not None:
            self.tensors = {}
            self.spent_ns = self.dispatched.assemble_ns
            return 0
        if (self.joined == 0 and len(self.handles) == 1
                and not ksrv_needs_padding(self.handles[0])):
            self.tensors = ksrv_received_tensors(self.handles[0])
            self.rows = (<NativeHandle>self.handles[0]).native.rows
        else:
            if self.joined < len(self.handles):
                began = now_ns()
                self.rows = _rows_of(self.handles)
                self._join()
                self.spent_ns += now_ns() - began
            self.tensors = self.joined_rows.tensors()
        if not self.source.copied:
            self.references = InputReferences(list(self.tensors.values()))
        return 0

    def answer(
        self, BatchOutputs outputs not None, Queue queue not None, Stats stats not None, *,
        bint later
    ) -> None:
        """See `RunnableBatch.answer`. Small answers are written to their connections at once."""
        self.reply(outputs, queue, stats, later)

    cdef int reply(self, BatchOutputs outputs, Queue queue, Stats stats, bint later) except -1:
        if outputs.is_bare():
            self.source.copied = _reply(self, outputs, queue, stats)
            if self.source.copied:
                return 0
        self.source.answer_generally(self, outputs, queue, stats, later)
        return 0


cdef FastBatch ksrv_fast_batch(list handles, FastBatches source):
    cdef FastBatch made = FastBatch.__new__(FastBatch)
    made.handles = handles
    made.failed = []
    made.source = source
    return made


cdef Py_ssize_t _rows_of(list handles) noexcept:
    cdef Py_ssize_t rows = 0
    for handle in handles:
        rows += (<NativeHandle>handle).native.rows
    return rows


cdef FastBatch ksrv_filled_batch(list handles, FastBatches source, object queue, object stats):
    cdef FastBatch made
    for handle in handles:
        if ksrv_has_images(handle):
            made = ksrv_fast_batch([], source)
            source.fill(made, handles, queue, stats)
            return made
    return ksrv_fast_batch(handles, source)


cdef bint ksrv_are_fast(list handles) noexcept:
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
    part.shape = <const Py_ssize_t *>cnp.PyArray_DIMS(array)
    part.rank = cnp.PyArray_NDIM(array)
    if not set_row_bytes(part, <uint64_t>cnp.PyArray_NBYTES(array), rows, alone):
        return False
    part.name = PyUnicode_AsUTF8AndSize(tensor.name, &length)
    part.name_length = <size_t>length
    part.datatype = PyUnicode_AsUTF8AndSize(tensor.datatype, &length)
    part.datatype_length = <size_t>length
    part.type = datatype_of(part.datatype, part.datatype_length)
    return item_size_of(part.type) == <size_t>cnp.PyArray_ITEMSIZE(array)


cdef int _stages(ReplyStage *stages, FastBatch batch, BatchOutputs outputs) except -1:
    """Write the stages and their times. Return their number, at most STAGES."""
    cdef const StageTimes *times = &outputs.times
    cdef Py_ssize_t length = 0
    cdef int count = 1
    stages[0] = ReplyStage(b"assemble", 8, batch.spent_ns)
    if outputs.timings_by_stage is None:
        if times.preprocess != NOT_RUN:
            stages[count] = ReplyStage(b"preprocess", 10, times.preprocess)
            count += 1
        if times.inference != NOT_RUN:
            stages[count] = ReplyStage(b"inference", 9, times.inference)
            count += 1
        if times.postprocess != NOT_RUN:
            stages[count] = ReplyStage(b"postprocess", 11, times.postprocess)
            count += 1
        return count
    for name, nanoseconds in outputs.timings_by_stage.items():
        stages[count].name = PyUnicode_AsUTF8AndSize(name, &length)
        stages[count].length = <size_t>length
        stages[count].nanoseconds = nanoseconds
        count += 1
        if count == STAGES:
            break
    return count


cdef bint _reply(FastBatch batch, BatchOutputs outputs, Queue queue, Stats stats) except -1:
    """If the answers of a batch are small, send and count them.

    Returns:
        Whether requests were answered, except for expired requests; see `answer_batch`.
    """
    cdef Parts parts
    cdef ReplyStage stages[STAGES]
    cdef BatchReply reply
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
