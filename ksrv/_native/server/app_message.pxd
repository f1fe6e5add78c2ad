"""Messages of the Falcon app, for the other compiled modules."""

from native.http.connection cimport Connection
from native.server.server cimport HttpServer as CHttpServer


# Makes the message of a connection that waited for the app.
cdef object ksrv_app_message(object owner, CHttpServer *server, Connection *connection)
