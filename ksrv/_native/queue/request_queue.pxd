"""The queues, for other compiled modules."""

from native.queue.request_queue cimport Queue as CQueue


cdef class Queue:
    cdef CQueue *queue
    cdef readonly str name
    cdef object __weakref__
