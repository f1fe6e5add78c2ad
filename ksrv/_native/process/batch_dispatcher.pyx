# Needs the GIL: the fields that `serve` fills are read before the same thread calls it again.
"""Serves a handler process without Python, and returns the batches that need Python.

The thread of an instance calls `RingDispatcher.serve` in a loop. The C++ dispatcher
(native/process/batch_dispatcher.hpp) moves batches from the queue into the process's ring, and
answers from the ring into the connections. `serve` returns when Python must act.
"""

cimport numpy as cnp
cimport cython
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcpy

from native.base.clock cimport NEVER, now_ns
from native.process.batch_dispatcher cimport (
    RingDispatcher as CRingDispatcher, DispatchTerms, DispatchedRun as CDispatchedRun,
    HandBack, Served,
)
from native.process.batch_ring cimport RingAnswer, RingOutput
from native.tensor.datatype cimport MAX_RANK as RANK_LIMIT

from ksrv._native.process.batch_ring cimport WorkerRing
from ksrv._native.queue.request_queue cimport Queue, ksrv_handles
from ksrv._native.queue.stats cimport Stats
from ksrv._native.server.request_batch cimport ksrv_plan_images
from ksrv._native.server.model_endpoint cimport ModelEndpoint
from ksrv._native.tensor.new_array cimport new_array
from ksrv._native.tensor.tensor cimport ksrv_tensor

from ksrv._native.process.batch_ring import FIRST_BATCH_NUMBER
from ksrv._native.tensor.datatype import DTYPES as DATATYPE_DTYPES, NAMES as DATATYPE_NAMES

if not cython.compiled:
    from typing import Any

cnp.import_array()

cdef tuple DTYPES = DATATYPE_DTYPES
cdef tuple NAMES = DATATYPE_NAMES


cdef class DispatchedRun:
    """A batch that was sent to a handler process, and that Python must finish.

    Attributes:
        ring: The ring of the process.
        handles: The requests in row order, including requests that ended before the batch ran.
        batch_number: The batch's number on the channel.
        began_ns: When the handler began the batch, on the clock of `time.monotonic_ns`.
        deadline_ns: When the batch times out, or None.
        assemble_ns: How long joining the requests took.
        outputs: The outputs, or None if they are not in the ring.
        timings: Nanoseconds by stage, set together with `outputs`.
        fault: The fault in the answer in the ring, or "".
    """

    cdef readonly WorkerRing ring
    cdef readonly list handles
    cdef readonly uint64_t batch_number
    cdef readonly int64_t began_ns
    cdef readonly object deadline_ns
    cdef readonly uint64_t assemble_ns
    cdef readonly list outputs
    cdef readonly dict timings
    cdef readonly str fault

    handles: list[Any]
    deadline_ns: int | None
    outputs: list[Any] | None
    timings: dict[str, int]


@cython.no_gc_clear  # __dealloc__ gives batches back to the queue and the ring
cdef class RingDispatcher:
    """Takes batches for one instance whose handler runs in a process.

    Args:
        ring: The ring of the process. A replacement process gets another ring.
        stats: Counts the batches that are served without Python.
        room: The most requests in a batch.
        delay_ns: How long the oldest request of a batch waits for the batch to fill.
        run_timeout_ns: How long a batch may run. 0 if only its requests' deadlines limit it.

    Attributes:
        ring: The ring of the process.
    """

    cdef CRingDispatcher *dispatcher
    cdef DispatchTerms terms
    cdef Queue queue
    cdef readonly WorkerRing ring
    cdef Stats stats

    def __cinit__(
        self, Queue queue not None, WorkerRing ring not None, Stats stats not None, *, size_t slot,
        size_t room, uint64_t max_rows, int64_t delay_ns, int64_t run_timeout_ns
    ):
        self.queue = queue
        self.ring = ring
        self.stats = stats
        self.terms.slot = slot
        self.terms.max_rows = max_rows
        self.terms.delay_ns = delay_ns
        self.terms.run_timeout_ns = run_timeout_ns
        self.dispatcher = new CRingDispatcher(
            queue.queue, ring.ring, ring.channel, &stats.sums, room
        )

    def __dealloc__(self):
        del self.dispatcher

    def serve(self) -> Any:
        """Serve the process until Python is needed. Releases the GIL meanwhile.

        Returns:
            The result of `Queue.take` (a list of handles, True or None) if Python must run a batch,
            the instance was nudged, or the queue is closed. A `DispatchedRun` if Python must finish
            a batch of the ring. The number of the running batch if its process has sent a message,
            or if Python must check its calls to other models.
        """
        cdef Served served
        # `ProcessRuns.wants_looks`: Python must check calls or unsent messages of the process from
        # time to time, so the dispatcher returns `Served.message` even if no message has arrived.
        self.terms.has_calls = self.ring.batches.wants_looks
        while True:
            with nogil:
                served = self.dispatcher.serve(self.terms)
            if served != Served.plans:
                break
            # A batch has images of a new size. Only Python can make resize plans.
            ksrv_plan_images(
                <ModelEndpoint>self.dispatcher.pending().endpoint, self.dispatcher.rows
            )
        if served == Served.ready:
            return True
        if served == Served.closed:
            return None
        if served == Served.nudged:
            return []
        if served == Served.started:
            return self._started()
        if served == Served.message:
            return FIRST_BATCH_NUMBER + self.dispatcher.running().number
        # Served.requests: a batch that Python must run, such as one that does not fit the ring.
        handles = ksrv_handles(self.dispatcher.batch.requests)
        self.dispatcher.batch.release_requests()
        return handles

    def running(self) -> list[Any]:
        """Return the requests of the running batch in row order.

        Each call makes new handles, because batches in the ring have only fast-path requests.
        """
        return ksrv_handles(self.dispatcher.running().requests)

    def hand_over(self) -> DispatchedRun:
        """Return the running batch for Python to finish, because its process is ending."""
        self.dispatcher.hand_over(HandBack.on_channel)
        return self._started()

    def put_back(self) -> None:
        """Return batches that the handler has not begun to the queue, because its process ended."""
        self.dispatcher.put_back()

    cdef DispatchedRun _started(self):
        """Return the batch that the dispatcher handed back, and the outputs in the ring, if any."""
        cdef CDispatchedRun *batch = &self.dispatcher.batch
        cdef DispatchedRun made = DispatchedRun.__new__(DispatchedRun)
        made.ring = self.ring
        made.batch_number = FIRST_BATCH_NUMBER + batch.number
        made.began_ns = batch.began_ns
        made.deadline_ns = None if batch.deadline_ns == NEVER else batch.deadline_ns
        made.assemble_ns = batch.assemble_ns
        made.fault = ""
        if self.dispatcher.why == HandBack.malformed:
            made.fault = self.dispatcher.fault.decode()
        elif self.dispatcher.why == HandBack.outputs:
            self._read(made, self.ring.ring.answer_rows(batch.number))
        made.handles = ksrv_handles(batch.requests)
        batch.release_requests()
        return made

    cdef int _read(self, DispatchedRun made, const unsigned char *rows) except -1:
        """Copy the outputs and times of an answer, which the dispatcher has checked, to `made`."""
        cdef RingAnswer *answer = &self.dispatcher.answer
        cdef RingOutput *output
        cdef cnp.npy_intp sizes[RANK_LIMIT]
        cdef cnp.ndarray array
        cdef uint32_t i
        cdef int k
        # Cap reported stage times at the time since the batch was dispatched.
        cdef uint64_t most_ns = <uint64_t>(now_ns() - self.dispatcher.batch.dispatched_ns)
        made.outputs = []
        for i in range(answer.outputs):
            output = &answer.output[i]
            for k in range(output.rank):
                sizes[k] = <cnp.npy_intp>output.shape[k]
            dtype = DTYPES[output.datatype]
            array = new_array(dtype, output.rank, sizes)
            memcpy(cnp.PyArray_DATA(array), rows + output.offset, output.nbytes)
            made.outputs.append(ksrv_tensor(
                output.name[:output.name_length].decode(), NAMES[output.datatype],
                tuple([output.shape[k] for k in range(output.rank)]), array,
            ))
        made.timings = {}
        for i in range(answer.stages):
            name = <bytes>answer.stage[i].name
            made.timings[name.decode()] = min(answer.stage[i].ns, most_ns)
        return 0
