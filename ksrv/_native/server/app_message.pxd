"""Messages of the Falcon app, for the other compiled modules."""

from libc.stdint cimport uint32_t

from ksrv._native.server.server cimport CHttpServer, Connection, sockaddr_storage


# The address of a peer, as Python's sockets give it.
cdef object ksrv_address(sockaddr_storage *storage, uint32_t length)

# The message of a connection that waited for the app.
cdef object ksrv_app_message(object owner, CHttpServer *server, Connection *connection)
