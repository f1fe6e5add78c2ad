# Needs the GIL: arrays and tensors of a process are made and read one batch at a time.
"""The memory that a worker and a handler process share: the ring (native/process/batch_ring.hpp).

`WorkerRing` is the worker's end, `ProcessRing` the process's. Their base `SharedMemory` leases the
large slots, which both sides fill with tensors of batches and messages.

`ProcessRing.serve` is the loop that runs batches in the process. It copies the rows of a batch into
arrays that a handler may keep, calls the runner, and writes the outputs to the answer slot. Outputs
that do not fit are sent over the channel, which is the socket between worker and process. The rows
of a large batch are not copied: while a handler keeps an array over them, their slot is not filled
again.
"""

import fcntl
import os
from collections.abc import Sequence
from typing import Any

cimport numpy as cnp
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_CheckSignals
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
cimport cython
from libc.errno cimport errno
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t, uint8_t
from libc.string cimport memcpy, memset

from native.base.clock cimport NEVER, now_ns
from native.memory.buffer_pool cimport Block as CBlock, process_pool
from native.process.batch_ring cimport (
    BELL_INTERRUPTED, BELL_RANG, Bell, RING_ANSWER_BYTES, RING_BATCH_BYTES, RING_LARGE_BYTES,
    RING_NAME, RING_ON_CHANNEL, RING_OUTPUTS, RING_OUTPUTS_HERE, RING_STAGES, RING_STAGE_NAME,
    RingAnswer, RingRun, RingOutput, RingRequest, complete_batch, is_stage_name, ring_aligned,
    wait_for_batch,
)
from native.tensor.datatype cimport (
    DT_BYTES, DT_INVALID, Datatype, MAX_RANK as RANK_LIMIT, datatype_of, item_size_of,
)

from ksrv._native.batch.batch cimport ExecutorInputs, ExecutorOutputs
from ksrv._native.memory.buffer_pool cimport Block, ksrv_wrap
from ksrv._native.tensor.new_array cimport new_array
from ksrv._native.tensor.tensor cimport Tensor, ksrv_tensor

from ksrv._native.tensor.datatype import DTYPES as DATATYPE_DTYPES

if not cython.compiled:
    from collections.abc import Callable, Iterable, Iterator
    from typing import TypeAlias

    RingRecord: TypeAlias = tuple[
        int, int, str, bytes, int | None, list[int], dict[int, memoryview]
    ]

cnp.import_array()

cdef tuple DTYPES = DATATYPE_DTYPES

FIRST_BATCH_NUMBER: int = 1 << 63
"""In messages, a batch of the ring has this number plus its number in the ring. Batches that Python
sends as messages have smaller numbers."""

# How long a process polls for its next batch before it sleeps: about the cost of waking it up.
cdef int64_t SPIN_NS = 5000


cdef class SharedMemory:
    """The large slots of a ring, for tensors that a side writes and the other side reads in place.

    A message names a slot by its number. A slot can be leased again if nothing on this side refers
    to it, and the other side has released it as often as messages named it.
    """

    def __dealloc__(self):
        if self.ring != NULL:
            self.ring.release()

    def lease(self, size_t nbytes) -> Block | None:
        """Return a slot to write. None if it is too small, all are in use, or memory is short."""
        cdef CBlock *block
        with nogil:
            block = self.ring.lease(nbytes)
        return None if block == NULL else ksrv_wrap(block)

    def number_of(self, Block block not None) -> int:
        """Return the number of a slot that `lease` returned, or -1 for any other block."""
        return self.ring.number_of(block.block)

    def name(self, int slot) -> None:
        """Note that the next message names a leased slot."""
        self.ring.name(slot)

    def unname(self, int slot) -> None:
        """Undo `name`: the message was not sent."""
        self.ring.unname(slot)

    def receive(self, uint32_t slot) -> Block | None:
        """Return a slot that a message of the other side names, or None if it has no such slot."""
        cdef CBlock *block = self.ring.receive(slot)
        return None if block == NULL else ksrv_wrap(block)


cdef class WorkerRing(SharedMemory):
    """The worker's end of a ring.

    Args:
        channel: The descriptor of the worker's end of the process's channel. It is duplicated, so
            that a thread can wait for it while the channel is being closed.

    Attributes:
        batches: The `ksrv.engine.processes.runs.ProcessRuns` of the process.

    Raises:
        OSError: Not enough memory or file descriptors.
    """

    def __cinit__(self, int channel):
        self.channel = -1
        self.ring = Ring.make()
        if self.ring == NULL:
            raise OSError(errno, f"the memory for batches: {os.strerror(errno)}")
        self.channel = fcntl.fcntl(channel, fcntl.F_DUPFD_CLOEXEC, 0)
        # Larger bodies are in a memfd from now on, which can be lent to the process.
        process_pool().lendable_above.store(RING_LARGE_BYTES)

    def __dealloc__(self):
        if self.channel >= 0:
            os.close(self.channel)

    def fileno(self) -> int:
        """Return the descriptor of the memory, to pass to the process; -1 after it was closed."""
        return self.ring.fd()

    def seal(self) -> bool:
        """Prevent the memory from being truncated. Called after the process has mapped it.

        Returns:
            False if memory is short, or the process has sealed the descriptor itself.
        """
        return self.ring.seal()

    def close_fd(self) -> None:
        """Close the descriptor. The memory stays mapped."""
        self.ring.close_fd()

    @property
    def used(self) -> bool:
        """Whether the process was ever sent a batch."""
        return self.ring.used.load()


@cython.final
cdef class RingRequests:
    """The requests of a batch from the ring, in row order.

    Built on first use, because most handlers read only tensors.
    """

    cdef bytes text  # `count` records (`RingRequest`), then each id, head and sizes of images
    cdef uint32_t count
    cdef object make_requests
    cdef list made

    cdef list all(self):
        cdef const char *text = self.text
        cdef RingRequest record
        cdef Py_ssize_t at = self.count * sizeof(RingRequest)
        cdef list found
        cdef dict pictures
        cdef Py_ssize_t end, nbytes
        cdef uint32_t i, place
        if self.made is None:
            found = []
            for i in range(self.count):
                memcpy(&record, text + i * sizeof(RingRequest), sizeof(RingRequest))
                end = at + record.id_length + record.head_length
                pictures = {}
                nbytes = 2 * sizeof(uint32_t) * record.rows
                for place in range(32 if record.pictures else 0):
                    if record.pictures >> place & 1:
                        pictures[place] = memoryview(self.text)[end : end + nbytes].cast("I")
                        end += nbytes
                found.append((
                    record.rows,
                    record.row_length,
                    self.text[at : at + record.id_length].decode(),
                    self.text[at + record.id_length : at + record.id_length + record.head_length],
                    None if record.deadline_ns == NEVER else record.deadline_ns,
                    [record.wanted[place] for place in range(record.wanted_count)],
                    pictures,
                ))
                at = end
            self.made = self.make_requests(found)
        return self.made

    def __len__(self):
        return self.count

    def __getitem__(self, object place) -> Any:
        return self.all()[place]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.all())

    def __eq__(self, other):
        return isinstance(other, Sequence) and self.all() == list(other)


Sequence[Any].register(RingRequests)


cdef class ProcessRing(SharedMemory):
    """The handler process's end of a ring.

    Args:
        descriptor: The descriptor of the memory. The caller keeps it.
        channel: The descriptor of the process's end of the channel.

    Raises:
        ValueError: The descriptor does not refer to a ring.
    """

    cdef int channel
    cdef list inputs          # for each input: name, datatype, dtype, dimensions after the first
    cdef object make_requests
    cdef uint64_t completed   # the number of the last batch that was run; the first has number 1
    cdef ExecutorInputs running
    cdef object after_calls   # see `begin_call`; None if the running batch has called no model

    def __cinit__(self, int descriptor, int channel):
        self.ring = Ring.map(descriptor)
        if self.ring == NULL:
            raise ValueError("the descriptor is not one of memory for batches")
        self.channel = channel

    def declare(
        self,
        inputs: Iterable[tuple[str, str, Sequence[int]]],
        make_requests: Callable[[list[RingRecord]], Any],
    ) -> None:
        """Set what is known once the handler is loaded.

        Args:
            inputs: For each input its name, datatype and the dimensions after the first. -1 is the
                length of padded rows.
            make_requests: Makes the requests that a handler sees. Called with, for each request,
                the rows, the unpadded row length, the id, the head, the deadline, the indexes of
                the requested outputs, and for each input that was sent as encoded images its index
                and the height and width of each image.
        """
        self.make_requests = make_requests
        self.inputs = []
        for name, datatype, tail in inputs:
            kind = datatype.encode()
            code = datatype_of(kind, <size_t>len(kind))
            self.inputs.append((name, datatype, DTYPES[<int>code], tuple(tail)))

    def begin_call(self, object batch, after_calls: Callable[[], None]) -> int | None:
        """Note that the running batch calls another model.

        Returns:
            The number of the batch in messages, or None if `batch` is not running.

        Args:
            after_calls: Called after the batch has run, before it is answered.
        """
        # A thread that the batch started may call this after the batch has ended. The check and the
        # assignment are one step under the GIL, so `_run` cannot miss `after_calls`.
        if batch is not self.running:
            return None
        self.after_calls = after_calls
        return FIRST_BATCH_NUMBER + self.completed + 1

    def serve(
        self,
        run: Callable[[Any], Any],
        answer: Callable[[int, Any], None],
        fail: Callable[[int, BaseException], None],
    ) -> None:
        """Run batches until a message arrives on the channel, or the channel is closed.

        Args:
            run: Runs a batch, as `Runner.run`.
            answer: Sends outputs that do not fit the ring. Called with the batch number and the
                outputs.
            fail: Sends an exception of `run` or `answer`. Called with the batch number and the
                exception.
        """
        cdef Bell bell
        cdef uint64_t number
        cdef RingAnswer *slot
        cdef uint32_t form
        while True:
            with nogil:
                bell = wait_for_batch(self.ring[0], self.channel, self.completed, SPIN_NS)
            if bell == BELL_INTERRUPTED:
                PyErr_CheckSignals()
                continue
            if bell != BELL_RANG:
                return
            number = self.completed + 1
            slot = <RingAnswer *>self.ring.answer(number)
            slot.number = number
            slot.began_ns = now_ns()
            form = RING_OUTPUTS_HERE
            try:
                outputs = self._run(run, number)
                slot.ended_ns = now_ns()
                if not self._write(slot, number, outputs):
                    form = RING_ON_CHANNEL
                    answer(FIRST_BATCH_NUMBER + number, outputs)
            except SystemExit:  # handlers of some archives end their process with sys.exit
                raise
            except BaseException as error:
                form = RING_ON_CHANNEL
                fail(FIRST_BATCH_NUMBER + number, error)
            outputs = None  # release the handler's memory before the wait for the next batch
            slot.form = form
            self.completed = number
            complete_batch(self.ring[0], self.channel, number)

    cdef object _run(self, run, uint64_t number):
        self.running = self._batch(number)
        try:
            return run(self.running)
        finally:
            self.running = None
            if self.after_calls is not None:
                after_calls, self.after_calls = self.after_calls, None
                after_calls()

    cdef ExecutorInputs _batch(self, uint64_t number):
        """Read a batch from its slot. The head is copied first, so that it cannot change later."""
        cdef const unsigned char *slot = self.ring.batch(number)
        cdef RingRun head
        cdef ExecutorInputs batch = ExecutorInputs.__new__(ExecutorInputs)
        cdef RingRequests requests = RingRequests.__new__(RingRequests)
        cdef cnp.npy_intp sizes[RANK_LIMIT]
        cdef size_t at, nbytes, most = RING_BATCH_BYTES
        cdef int rank, i
        cdef cnp.ndarray array
        cdef CBlock *leased
        cdef Block large = None
        memcpy(&head, slot, sizeof(RingRun))
        if head.number != number or head.inputs != <uint32_t>len(self.inputs):
            raise ValueError(f"the ring has batch {head.number} with {head.inputs} inputs")
        batch.rows = head.rows
        batch.requests = requests
        requests.count = head.requests
        requests.make_requests = self.make_requests
        requests.text = PyBytes_FromStringAndSize(
            <const char *>slot + sizeof(RingRun), head.text_bytes
        )
        batch.tensors = {}
        at = head.first_row
        if head.large:  # the rows are in the large slot `head.large - 1`
            leased = self.ring.receive(head.large - 1)
            if leased == NULL:
                raise ValueError(f"the ring has no large slot {head.large}")
            large = ksrv_wrap(leased)
            slot = leased.data
            most = RING_LARGE_BYTES
        for name, datatype, dtype, tail in self.inputs:
            rank = <int>len(<tuple>tail) + 1
            sizes[0] = <cnp.npy_intp>head.rows
            for i in range(1, rank):
                sizes[i] = (<tuple>tail)[i - 1]
                if sizes[i] == -1:
                    sizes[i] = <cnp.npy_intp>head.row_length
            data = NULL if large is None else <void *>(slot + at)
            array = new_array(dtype, rank, sizes, data, large)
            nbytes = <size_t>cnp.PyArray_NBYTES(array)
            if nbytes > most or at > most - nbytes:
                raise ValueError(f"the rows of the input {name} exceed the ring")
            if large is None:
                memcpy(cnp.PyArray_DATA(array), slot + at, nbytes)
            at += ring_aligned(nbytes)
            batch.tensors[name] = ksrv_tensor(name, datatype, (<object>array).shape, array)
        return batch

    cdef bint _write(self, RingAnswer *slot, uint64_t number, ExecutorOutputs outputs) except -1:
        """Write the outputs of a batch. False if they must be sent over the channel.

        After False the slot may have been written in part. The worker does not read it then.
        """
        cdef unsigned char *rows = <unsigned char *>self.ring.answer_rows(number)
        cdef list tensors = outputs.tensors
        cdef dict timings = outputs.timings
        cdef RingOutput *output
        cdef Tensor tensor
        cdef cnp.ndarray array
        cdef Py_ssize_t length = 0
        cdef const char *text
        cdef size_t at = 0
        cdef uint32_t i = 0
        cdef int k
        cdef bytes kind
        cdef Datatype code
        if not outputs.is_bare() or len(tensors) > RING_OUTPUTS or len(timings) > RING_STAGES:
            return False
        for tensor in tensors:
            if tensor.parameters or not cnp.PyArray_CheckExact(tensor.data):
                return False
            array = <cnp.ndarray>tensor.data
            kind = tensor.datatype.encode()
            code = datatype_of(kind, <size_t>len(kind))
            if code == DT_INVALID or code == DT_BYTES or not (
                cnp.PyArray_IS_C_CONTIGUOUS(array) and cnp.PyArray_ISNOTSWAPPED(array)
            ):
                return False
            if (<size_t>cnp.PyArray_ITEMSIZE(array) != item_size_of(code)
                    or cnp.PyArray_NDIM(array) > RANK_LIMIT):
                return False
            output = &slot.output[i]
            output.nbytes = <uint64_t>cnp.PyArray_NBYTES(array)
            text = PyUnicode_AsUTF8AndSize(tensor.name, &length)
            if (output.nbytes > RING_ANSWER_BYTES or at > RING_ANSWER_BYTES - output.nbytes
                    or not 0 < length <= <Py_ssize_t>RING_NAME):
                return False
            memcpy(output.name, text, <size_t>length)
            output.name_length = <uint16_t>length
            output.datatype = <uint8_t>code
            output.rank = <uint8_t>cnp.PyArray_NDIM(array)
            for k in range(output.rank):
                output.shape[k] = cnp.PyArray_DIM(array, k)
            output.offset = at
            memcpy(rows + at, cnp.PyArray_DATA(array), output.nbytes)
            at += ring_aligned(output.nbytes)
            i += 1
        slot.outputs = i
        i = 0
        for name, nanoseconds in timings.items():
            text = PyUnicode_AsUTF8AndSize(name, &length)
            if length >= <Py_ssize_t>RING_STAGE_NAME:
                return False
            memset(slot.stage[i].name, 0, RING_STAGE_NAME)
            memcpy(slot.stage[i].name, text, <size_t>length)
            if not is_stage_name(slot.stage[i].name):
                return False
            slot.stage[i].ns = nanoseconds
            i += 1
        slot.stages = i
        return True
