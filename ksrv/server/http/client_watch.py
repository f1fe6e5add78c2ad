"""How the thread of a request waits for the response, and notices that its client has disconnected.

Now and then the thread looks at the client's connection: a request whose client has disconnected is
cancelled, and frees its place in the queue. A client that closed only its sending direction
(POLLRDHUP) may still read the response. To tell it from a client that is gone, one interim response
`100 Continue` is sent: clients of HTTP/1.1 skip it, and a closed peer resets the connection.
"""

import select
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from ksrv._native.queue.request_handle import NativeHandle
from ksrv._native.server.app_message import AppMessage
from ksrv.engine.requests.handle import SplitRequest
from ksrv.request import InferRequest, InferResponse, RequestHandle
from ksrv.server.http.received_body import MESSAGE

if TYPE_CHECKING:
    from ksrv.engine.engine import Engine

Result = TypeVar("Result")

LOOK_NS = 250_000_000
"""Between two looks at the connection of a client that waits."""

INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"


class ClientConnection:
    """The connection of a client that waits for a response.

    Args:
        sock: Its socket, which no other thread uses meanwhile.
    """

    def __init__(self, sock: Any) -> None:
        self._sock = sock
        self._asked = False

    def watch(self, handle: "RequestHandle") -> bool:
        """Have a request cancelled when its client disconnects.

        Returns:
            Whether that is done; else `disconnected` is to be asked now and then.
        """
        return False

    def disconnected(self) -> bool:
        """Tell whether the client has disconnected, as far as the kernel knows by now."""
        look = select.poll()
        look.register(self._sock.fileno(), select.POLLRDHUP)
        found = sum(event for _, event in look.poll(0))
        if found & (select.POLLERR | select.POLLHUP | select.POLLNVAL):
            return True
        if found & select.POLLRDHUP and not self._asked:
            self._asked = True
            try:
                self._sock.sendall(INTERIM)
            except OSError:
                return True
        return False


class MessageConnection(ClientConnection):
    """The connection of a message of the native HTTP server, which watches it itself."""

    def __init__(self, message: AppMessage) -> None:
        super().__init__(None)
        self._message = message

    def watch(self, handle: "RequestHandle") -> bool:
        """See `ClientConnection.watch`."""
        watched = handle.parts[-1] if isinstance(handle, SplitRequest) else handle
        if isinstance(watched, NativeHandle) and not watched.done():
            self._message.watch(watched)
        return True

    def disconnected(self) -> bool:
        """Return False: the native server cancels the request by itself."""
        return False


class ThreadWaiter:
    """Waits on the request's own thread; `ksrv.server.http.gevent_support` has the other waiter."""

    def client_of(self, environ: Mapping[str, Any]) -> ClientConnection | None:
        """Return the connection of a request's client, or None where it cannot be watched."""
        message: AppMessage | None = environ.get(MESSAGE)
        if message is not None:
            return MessageConnection(message)
        sock = environ.get("gunicorn.socket")
        # A client before HTTP/1.1 skips no interim response.
        if sock is None or environ.get("SERVER_PROTOCOL") != "HTTP/1.1":
            return None
        return ClientConnection(sock)

    def infer(
        self, engine: "Engine", request: InferRequest, client: ClientConnection | None
    ) -> InferResponse:
        """Run a request as `Engine.infer` does, as long as its client is connected.

        Args:
            client: The client's connection, or None where it cannot be watched.

        Raises:
            KsrvError: Why there is no response.
        """
        if client is None:
            return engine.infer(request)
        # A thread that ran the request itself could not have its client watched meanwhile.
        handle = engine.submit(request)
        if not client.watch(handle) and isinstance(handle, (NativeHandle, SplitRequest)):
            while not handle.join(time.monotonic_ns() + LOOK_NS):
                if client.disconnected():
                    handle.cancel()
        return handle.wait()

    def call(self, function: Callable[[], Result]) -> Result:
        """Return the result of a function that blocks, without blocking other requests."""
        return function()
