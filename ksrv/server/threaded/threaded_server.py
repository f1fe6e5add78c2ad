"""HTTP on threads: what a worker does where a setting, or TLS without OpenSSL 3, leaves the native server out.

gunicorn's threaded worker shakes hands and reads heads on its pool, without a time limit, so that as
many silent connections as it has threads stop it. Here the main thread does both for all connections
at once, and none of them makes it wait. A connection gets a thread when its head is whole, and from
then on the socket asks its peer for a least rate. Messages with a body leave some threads to those
without; health is answered by the main thread. What gunicorn parses and frames, it parses and frames
here as well.
"""

import contextlib
import errno
import re
import selectors
import socket
import ssl
import time
from collections import deque
from concurrent.futures import Future
from functools import partial
from typing import Any

from gunicorn import http
from gunicorn.workers.gthread import TConn

from ksrv.server.http.gunicorn_errors import write_error
from ksrv.server.threaded.timed_socket import (
    PlainSocket,
    TimedSocket,
    TlsSocket,
    TransferTimeouts,
)

TICK_SECONDS = 0.25
READ_BYTES = 16384
SPARE_THREADS = 4
"""Threads of the pool that no message with a body ever gets."""
LINGER_SECONDS = 2.0
"""For a peer to close its side, and for one more message on a connection of a worker that leaves."""

_HEALTH = re.compile(rb"(?:GET|HEAD) /(?:v2/health/(?:live|ready)|ping)[? ]")
_BODY = re.compile(rb"\r\n(?:content-length:[ \t]*0*[1-9]|transfer-encoding:)", re.IGNORECASE)
_BARE_LINE_FEED = re.compile(rb"(?<!\r)\n")


def _asks_for_head(head: bytes | bytearray) -> bool:
    return head.lstrip(b"\r\n").startswith(b"HEAD ")


class GatheredConnection(TConn):  # type: ignore[misc]
    """A connection whose handshake and heads are read without waiting.

    Attributes:
        shaken: Whether the handshake is over; true without TLS.
        head: What has come of the next message.
        has_body: Whether the message that is being answered announced a body.
        ending: Whether the answer was the last, and the peer may close.
        deadline: When the connection is closed while the main thread has it.
        events: What the main thread waits for; 0 while a thread has it.
    """

    sock: TimedSocket

    def __init__(self, cfg: Any, sock: TimedSocket, client: Any, server: Any) -> None:
        super().__init__(cfg, sock, client, server)
        self.initialized = True  # nothing is left for gunicorn's thread to do
        self.parser = http.get_parser(cfg, sock, client)
        self.shaken = not isinstance(sock, ssl.SSLSocket)
        self.head = bytearray()
        self.has_body = False
        self.ending = False
        self.deadline = 0.0
        self.events = 0

    @property
    def idle(self) -> bool:
        """Whether nothing of a message has come."""
        return self.shaken and not self.head and not self.ending

    def is_whole(self) -> bool:
        """Whether gunicorn's parser can tell of the head without reading more."""
        head = self.head
        start = 0
        while head[start : start + 2] == b"\r\n":
            start += 2
        return head.find(b"\r\n\r\n", start) >= 0 or _BARE_LINE_FEED.search(head) is not None

    def shake(self) -> None:
        """Go on with the handshake."""
        if not self.shaken:
            assert isinstance(self.sock, ssl.SSLSocket)
            self.sock.do_handshake()
            self.shaken = True

    def say_goodbye(self) -> None:
        """Send what tells the peer that nothing more will come."""
        if isinstance(self.sock, ssl.SSLSocket):
            with contextlib.suppress(OSError, ValueError):  # its own goodbye is not waited for
                self.sock.unwrap()
        self.sock.shutdown(socket.SHUT_WR)


class ThreadedFront:
    """The main loop of a worker without the native HTTP server.

    Args:
        context: What connections are encrypted with; None for cleartext.
    """

    def __init__(
        self,
        worker: Any,
        timeouts: TransferTimeouts,
        head_bytes: int,
        context: ssl.SSLContext | None,
    ) -> None:
        self._worker = worker
        self._timeouts = timeouts
        self._head_bytes = head_bytes
        self._context = context
        if context is not None:
            context.sslsocket_class = TlsSocket
        self._mine: dict[GatheredConnection, None] = {}  # those that no thread has
        self._accepting = False
        self._short = False
        self._most_bodies = max(1, worker.cfg.threads - SPARE_THREADS)
        self._bodies = 0
        self._waiting: deque[GatheredConnection] = deque()

    def run(self) -> None:
        """Serve until the worker is told to leave; then finish what was accepted."""
        worker = self._worker
        worker.poller.register(
            worker.method_queue.fileno(), selectors.EVENT_READ, worker.method_queue.run_callbacks
        )
        while worker.alive:
            worker.notify()
            self._accept_more(True)
            worker.wait_for_and_dispatch_events(timeout=TICK_SECONDS)
            if not worker.is_parent_alive():
                break
            self._end_overdue()
        self._finish()

    # ---- accepting ------------------------------------------------------------------------------

    def _accept_more(self, wanted: bool) -> None:
        if wanted == self._accepting:
            return
        self._accepting = wanted
        for listener in self._worker.sockets:
            if wanted:
                listener.setblocking(False)
                self._worker.poller.register(listener, selectors.EVENT_READ, self._accept)
            else:
                self._worker.poller.unregister(listener)

    def _accept(self, listener: Any) -> bool:
        """Accept a connection; say whether there was one."""
        worker = self._worker
        if worker.nr_conns >= worker.worker_connections and not self._drop_idle():
            self._accept_more(False)  # until the next round
            return False
        try:
            accepted, client = listener.accept()
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EWOULDBLOCK, errno.ECONNABORTED):
                if not self._short:
                    worker.log.error("no connection can be accepted: %s", error)
                self._short = True
                self._accept_more(False)
            return False
        self._short = False
        worker.nr_conns += 1
        try:
            sock = self._timed_socket(accepted)
        except OSError as error:
            worker.log.debug("a connection was gone before its handshake: %s", error)
            accepted.close()
            worker.nr_conns -= 1
            return True
        conn = GatheredConnection(worker.cfg, sock, client, listener.getsockname())
        conn.deadline = time.monotonic() + self._timeouts.wait
        self._mine[conn] = None
        self._advance(conn)
        return True

    def _timed_socket(self, accepted: Any) -> TimedSocket:
        sock: TimedSocket
        if self._context is None:
            family = accepted.family
            sock = PlainSocket(accepted.detach(), family, self._timeouts)
        else:
            accepted.setblocking(False)
            wrapped: Any = self._context.wrap_socket(
                accepted, server_side=True, do_handshake_on_connect=False
            )
            wrapped.timeouts = self._timeouts
            sock = wrapped
        return sock

    def _drop_idle(self) -> bool:
        """Close the connection that has been silent longest, to make room for a new one."""
        idle = next((conn for conn in self._mine if conn.idle), None)
        if idle is None:
            return False
        self._drop(idle)
        return True

    # ---- handshakes and heads -------------------------------------------------------------------

    def _advance(self, conn: GatheredConnection, _fileobj: Any = None) -> None:
        """Go on with a connection as far as that is possible without waiting."""
        if conn not in self._mine:
            return
        try:
            if conn.ending:
                if not conn.sock.take(READ_BYTES):
                    self._drop(conn)
                return
            if not conn.shaken:
                conn.shake()
                conn.deadline = self._patient_until(conn)
            while not conn.is_whole():
                received = conn.sock.take(READ_BYTES)
                if not received:
                    self._drop(conn)
                    return
                if not conn.head:
                    conn.deadline = time.monotonic() + self._timeouts.wait
                conn.head += received
                if len(conn.head) > self._head_bytes and not conn.is_whole():
                    conn.sock.wants_head = _asks_for_head(conn.head)
                    write_error(conn.sock, 431, "", "the head is too long")
                    self._end(conn)
                    return
        except (BlockingIOError, ssl.SSLWantReadError):
            self._watch(conn, selectors.EVENT_READ)
        except ssl.SSLWantWriteError:
            self._watch(conn, selectors.EVENT_WRITE)
        except (OSError, ValueError) as error:
            self._worker.log.debug("a connection ended before its request: %s", error)
            self._drop(conn)
        else:
            self._dispatch(conn)

    def _patient_until(self, conn: GatheredConnection) -> float:
        """When a connection without anything of a message is closed."""
        seconds = self._worker.cfg.keepalive if self._worker.alive else LINGER_SECONDS
        return time.monotonic() + float(seconds)

    def _watch(self, conn: GatheredConnection, events: int) -> None:
        if events == conn.events:
            return
        poller = self._worker.poller
        if not events:
            poller.unregister(conn.sock)
        elif conn.events:
            poller.modify(conn.sock, events, partial(self._advance, conn))
        else:
            poller.register(conn.sock, events, partial(self._advance, conn))
        conn.events = events

    def _end_overdue(self) -> None:
        now = time.monotonic()
        for conn in [conn for conn in self._mine if conn.deadline <= now]:
            self._drop(conn)

    # ---- requests -------------------------------------------------------------------------------

    def _dispatch(self, conn: GatheredConnection) -> None:
        """Have a message answered whose head is whole."""
        self._watch(conn, 0)
        del self._mine[conn]
        head = bytes(conn.head)
        conn.head.clear()
        conn.parser.unreader.unread(head)
        conn.sock.begin()
        conn.sock.wants_head = _asks_for_head(head)
        conn.has_body = _BODY.search(head) is not None
        if _HEALTH.match(head) and not conn.has_body:
            conn.sock.hurried = True
            keep = self._worker.handle(conn) is True
            conn.sock.hurried = False
            if self._take_back(conn, keep):
                self._worker.method_queue.defer(self._advance, conn)  # others have their turn
        elif conn.has_body and self._bodies >= self._most_bodies:
            self._waiting.append(conn)
        else:
            self._submit(conn)

    def _submit(self, conn: GatheredConnection) -> None:
        self._bodies += conn.has_body
        worker = self._worker
        future = worker.tpool.submit(worker.handle, conn)
        future.add_done_callback(partial(worker.method_queue.defer, self._answered, conn))

    def _answered(self, conn: GatheredConnection, future: "Future[object]") -> None:
        self._bodies -= conn.has_body
        if self._waiting and self._bodies < self._most_bodies:
            self._submit(self._waiting.popleft())
        error = future.exception()
        if error is not None:
            self._worker.log.error("a request failed", exc_info=error)
        if self._take_back(conn, error is None and future.result() is True):
            self._advance(conn)

    def _take_back(self, conn: GatheredConnection, keep: bool) -> bool:
        """Take a connection whose message was answered; say whether it may bring another."""
        self._mine[conn] = None
        try:
            conn.sock.setblocking(False)
            if not keep:
                self._end(conn)
                return False
            conn.head += conn.parser.unreader.take_buffered()
        except (OSError, ValueError):
            self._drop(conn)
            return False
        conn.deadline = self._patient_until(conn)
        return True

    # ---- the end --------------------------------------------------------------------------------

    def _end(self, conn: GatheredConnection) -> None:
        """Close this side, and the connection once the peer has: a reset could eat the answer."""
        conn.ending = True
        conn.deadline = time.monotonic() + LINGER_SECONDS
        try:
            conn.say_goodbye()
        except OSError:
            self._drop(conn)
        else:
            self._watch(conn, selectors.EVENT_READ)

    def _drop(self, conn: GatheredConnection) -> None:
        with contextlib.suppress(KeyError, ValueError, OSError):  # where it is closed already
            self._watch(conn, 0)
        del self._mine[conn]
        conn.close()
        self._worker.nr_conns -= 1

    def _finish(self) -> None:
        """Answer what was accepted, and what connects until the listeners are closed."""
        worker = self._worker
        self._accept_more(False)
        for listener in worker.sockets:
            while self._accept(listener):
                pass
            listener.close()  # at once: the kernel resets a connection that comes in between
        now = time.monotonic()
        for conn in self._mine:
            if conn.idle:
                conn.deadline = min(conn.deadline, now + LINGER_SECONDS)
        deadline = now + worker.cfg.graceful_timeout
        while worker.nr_conns > 0 and time.monotonic() < deadline:
            worker.notify()
            worker.wait_for_and_dispatch_events(timeout=0.05)
            self._end_overdue()
        if worker.nr_conns:
            worker.log.warning(
                "%d connections were still open after graceful_timeout", worker.nr_conns
            )
        for conn in list(self._mine):
            self._drop(conn)
        worker.tpool.shutdown(wait=False)
        worker.poller.close()
        worker.method_queue.close()
