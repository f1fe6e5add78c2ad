"""Exchanges for the other compiled modules."""

from libc.stdint cimport uint32_t

from ksrv._native.server.server cimport AnswerSender, Connection, Turn, sockaddr_storage


# The address of a peer, as Python's sockets give it.
cdef object ksrv_address(sockaddr_storage *storage, uint32_t length)


cdef class Exchange:
    cdef object owner  # keeps the HTTP server
    cdef AnswerSender *answers
    cdef Turn turn  # its connection is NULL once the exchange was answered
    cdef readonly str model
    cdef readonly str version
    cdef readonly str header_length
    cdef readonly object body
    cdef readonly object announced
    cdef readonly bytes head
    cdef readonly str request_id
    cdef readonly bint sampled

    # Claims the answer: it is the caller's alone from here on.
    cdef Connection *take_connection(self) except NULL
    # Sets up the head of an answer, with room for parts of a body; without memory 500 is sent.
    cdef int put_head(
        self, Connection *connection, int status, bytes line, bytes fields, int parts
    ) except -1


cdef int ksrv_fill_exchange(
    Exchange exchange, object owner, AnswerSender *answers, const Turn &turn, bint take_body,
    bint identified
) except -1

cdef Exchange ksrv_exchange(object owner, AnswerSender *answers, const Turn &turn)

# Gives a request to `handler`, as an exchange; whatever that raises, the request is answered.
cdef void ksrv_route(object owner, AnswerSender *answers, const Turn &turn, object handler) noexcept
