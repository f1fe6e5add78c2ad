"""The queues, for other compiled modules."""

from libcpp.vector cimport vector

from native.queue.request cimport Request as CRequest
from native.queue.request_queue cimport Queue as CQueue


cdef class Queue:
    cdef CQueue *queue
    cdef readonly str name
    cdef object __weakref__


# The handles of a batch's requests. The list takes over the references of `taken`.
cdef list ksrv_handles(const vector[CRequest *] &requests)
