"""How the thread of a request waits for its answer.

It looks after its client now and then: a request whose client has gone is cancelled, and frees its
place. One that has closed its direction only may still read; it is sent an interim answer, which every
client of HTTP/1.1 skips and at which the connection of one that is gone is reset.

The engine waits in native code, which in a gevent worker would stop every other request of the
process. So there the call moves to gevent's pool of real threads. gevent is only looked for where a
worker has already patched the socket module.
"""

import select
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ksrv._native.queue.request_queue import Ticket as QueueTicket
from ksrv.engine.ticket import JoinedTicket
from ksrv.request import InferRequest, InferResponse

if TYPE_CHECKING:
    from ksrv.engine.engine import Engine
    from ksrv.server.rest.infer import Run


Result = TypeVar("Result")
Blocking = Callable[[Callable[[], Result]], Result]
"""Makes a call that waits, without stopping other requests."""


LOOK_NS = 250_000_000
"""Between two looks after the client of a request that waits."""

INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"


class Client:
    """The client of a request that waits.

    Args:
        sock: Its connection, which nobody else uses meanwhile.
    """

    def __init__(self, sock: Any) -> None:
        self._sock = sock
        self._asked = False

    def has_vanished(self) -> bool:
        """Tell whether the client has gone, for all that is known by now."""
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


def client_of(environ: Mapping[str, Any]) -> Client | None:
    """Return the client of a request, where the thread that serves it may look after it.

    Args:
        environ: The WSGI environment.
    """
    sock = environ.get("gunicorn.socket")
    # A client before HTTP/1.1 skips no interim answer. A greenlet's socket is its hub's.
    if sock is None or environ.get("SERVER_PROTOCOL") != "HTTP/1.1" or _patched_by_gevent():
        return None
    return Client(sock)


def run_for(engine: "Engine", client: Client, request: InferRequest) -> InferResponse:
    """Run a request as `Engine.infer` does, as long as its client is there.

    Args:
        engine: What runs it.
        client: Who waits for it.
        request: The request.

    Raises:
        KsrvError: Why there is no answer.
    """
    ticket = engine.submit(request, waits=True)
    if isinstance(ticket, (QueueTicket, JoinedTicket)):
        while not ticket.join(time.monotonic_ns() + LOOK_NS):
            if client.has_vanished():
                ticket.cancel()
    return ticket.wait()


def _patched_by_gevent() -> bool:
    monkey: Any = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("socket"))


def _run_in_pool(engine: "Engine", request: InferRequest) -> InferResponse:
    from gevent import get_hub

    return cast(InferResponse, get_hub().threadpool.apply(engine.infer, (request,)))


def chosen_run(engine: "Engine") -> "Run | None":
    """Return the detour that requests take to the engine in this worker, or None without one.

    Args:
        engine: What runs it.
    """
    return partial(_run_in_pool, engine) if _patched_by_gevent() else None


def _call(waits: Callable[[], Result]) -> Result:
    return waits()


def _call_in_pool(waits: Callable[[], Result]) -> Result:
    from gevent import get_hub

    return cast(Result, get_hub().threadpool.apply(waits))


def chosen_blocking() -> Blocking[Any]:
    """Return the way to make a call that waits that suits this worker."""
    return _call_in_pool if _patched_by_gevent() else _call


def keep_threads_real() -> None:
    """Have gevent patch everything but threads, when a gevent worker patches this process.

    The engine's threads wait in native code; as greenlets they would stop the process.
    """
    from gevent import monkey

    monkey.patch_all = partial(monkey.patch_all, thread=False)
