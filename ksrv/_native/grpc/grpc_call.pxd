"""One gRPC call, for the server that hands it to Python."""

from libc.stdint cimport uint64_t

from native.grpc.call cimport Call as CCall
from native.grpc.fast_call cimport MessageForm as CMessageForm
from native.grpc.messages cimport Message
from native.grpc.payload cimport Payload
from native.grpc.server cimport Server as CServer


cdef class MessageForm:
    cdef const CMessageForm *native


cdef class Call:
    cdef CCall *native  # a counted reference
    cdef CServer *server
    cdef object owner  # keeps the server alive
    cdef readonly str path
    cdef uint64_t counted  # bytes of the memory budget that the last taken message uses
    cdef bint finished     # answered, or another `Call` answers: deletion must not end the call

    cdef object _taken(self, Message *message)
    cdef int _send(self, Payload *payload, int code, bytes text, list metadata) except -1
    cdef Payload *_payload(self, message) except? NULL


cdef MessageForm form_of(const CMessageForm *native)

cdef Call call_of(object owner, CServer *server, CCall *native)
