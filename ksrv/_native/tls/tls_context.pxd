"""TLS contexts, for `HttpServer` and `GrpcServer`."""

from libcpp.memory cimport shared_ptr

from native.tls.ticket_keys cimport TicketKeys as CTicketKeys
from native.tls.tls_context cimport TlsContext as CTlsContext


cdef class TicketKeys:
    cdef shared_ptr[CTicketKeys] keys


cdef class TlsContext:
    cdef shared_ptr[const CTlsContext] context
