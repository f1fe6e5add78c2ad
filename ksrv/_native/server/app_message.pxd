"""Messages of the Falcon app, for the other compiled modules."""

from ksrv._native.server.server cimport CHttpServer, Connection

# Makes the message of a connection that waited for the app.
cdef object ksrv_app_message(object owner, CHttpServer *server, Connection *connection)
