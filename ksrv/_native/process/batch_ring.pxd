"""The memory that a worker and a handler process share for batches, for other compiled modules."""

from native.process.batch_ring cimport Ring


cdef class SharedMemory:
    cdef Ring *ring


cdef class WorkerRing(SharedMemory):
    cdef int channel  # a duplicate of the worker's end of the channel
    # The `ProcessRuns` (ksrv/engine/processes/runs.py) of the process that uses the ring.
    cdef public object batches
