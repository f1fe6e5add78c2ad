"""Batches of fast-path requests, for the other compiled modules."""

from libc.stdint cimport int64_t

from ksrv._native.batch.batch cimport BatchInputs, BatchOutputs
from ksrv._native.queue.request_queue cimport Queue
from ksrv._native.queue.stats cimport Stats
from ksrv._native.server.fast_rows cimport FastRows


cdef class FastRequests:
    cdef list handles
    cdef object read_requests
    cdef list made

    cdef list read(self)


cdef class FastBatches:
    cdef object fill
    cdef object lease
    cdef object read_requests
    cdef object answer_generally
    cdef bint copied


cdef class FastBatch(BatchInputs):
    cdef readonly list failed
    cdef Py_ssize_t room      # the most rows that it may grow to
    cdef Py_ssize_t joined    # how many of its requests have their rows in `joined_rows`
    cdef FastRows joined_rows
    cdef FastBatches source
    # The record of a batch that was dispatched to a handler process, else None.
    cdef object dispatched
    cdef public int64_t spent_ns
    cdef public int64_t ran_ns
    cdef readonly object references  # to the inputs before the batch ran, or None

    cdef FastRequests read  # the requests that a handler has read

    # `inputs` and `answer`, for other compiled modules.
    cdef int prepare(self) except -1
    cdef int reply(self, BatchOutputs outputs, Queue queue, Stats stats, bint later) except -1

    # Copies the rows of added requests into the batch's block.
    cdef int _join(self) except -1


cdef FastBatch ksrv_fast_batch(list handles, FastBatches source)

# Makes a batch and decodes the images of its requests. Answers requests that cannot be run.
cdef FastBatch ksrv_filled_batch(list handles, FastBatches source, object queue, object stats)
cdef bint ksrv_are_fast(list handles) noexcept
