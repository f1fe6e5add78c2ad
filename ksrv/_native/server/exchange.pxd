"""Exchanges for the other compiled modules."""

from native.http.connection cimport Connection
from native.http.message cimport Turn
from native.server.answer_sender cimport AnswerSender

from ksrv._native.http.sockets cimport sockaddr_storage


# The address of a peer, in the form of Python's sockets.
cdef object ksrv_address(const sockaddr_storage *storage)
# The IP address of a peer; "" for a unix socket.
cdef str ksrv_ip_address(const sockaddr_storage *storage)
# The user and group of the program at the other end of a unix socket, or None.
cdef tuple ksrv_user(const sockaddr_storage *storage)


cdef class Exchange:
    cdef object owner  # keeps the HTTP server alive
    cdef AnswerSender *answers
    cdef Turn turn  # its connection is NULL after the exchange was answered
    cdef readonly str model
    cdef readonly str version
    cdef readonly str header_length
    cdef readonly object body
    cdef readonly object announced
    cdef readonly bytes head
    cdef readonly str request_id
    cdef readonly bint sampled
    cdef readonly int plain

    # Claims the right to answer: after this nobody else can.
    cdef Connection *take_connection(self) except NULL
    # Makes the head of an answer, with memory for parts of a body. If memory is short, sends 500.
    cdef int put_head(
        self, Connection *connection, int status, bytes line, bytes fields, int parts
    ) except -1


cdef int ksrv_fill_exchange(
    Exchange exchange, object owner, AnswerSender *answers, const Turn &turn, bint take_body,
    bint identified
) except -1

cdef Exchange ksrv_exchange(object owner, AnswerSender *answers, const Turn &turn)

# Passes a request to `handler` as an exchange. The request is answered even if the handler raises.
cdef void ksrv_route(object owner, AnswerSender *answers, const Turn &turn, object handler) noexcept
