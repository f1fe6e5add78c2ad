"""Calls whose message has not arrived: how long they may wait, and the memory they hold meanwhile.

grpcio shows a message only once it is complete. How much of it has arrived, only its connection tells:
the kernel counts the bytes that a TCP connection received, and the bytes that were not handed over
belong to messages of unfinished calls. Ten times a second these bytes are charged to the memory
budget. A unix socket has no such count; there only the time and the number of calls are bounded.
"""

import ctypes
import ipaddress
import os
import socket
import stat
import struct
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterable
from typing import Any

from ksrv._native.memory.memory_budget import SMALL_REQUEST, MemoryBudget
from ksrv.errors import BodyTooLarge, KsrvError, Overloaded, RequestTooSlow
from ksrv.server.grpc.port import duplicate
from ksrv.server.http.byte_budget import no_room

SWEEP_SECONDS = 0.1

LONGEST_SECONDS = 300.0
"""The longest that a message may take, whatever its size; also where its bytes are not known."""

SMALL = 64 * 1024
"""A call whose message must be small is ended when its connection holds more bytes than this."""

SMALL_SECONDS = 1.0

CALL_BYTES = 256
"""About how many bytes a call takes on the wire besides its message. A count that is too low is corrected
by `_unread`."""

PRUNE_SECONDS = 10.0

_TCP_INFO_BYTES_RECEIVED = 128
"""Where struct tcp_info has tcpi_bytes_received, since Linux 4.1."""

_GONE = object()


class UnfinishedCall:
    """A call whose message has not arrived.

    Attributes:
        since: When the wait began, in `time.monotonic`'s seconds.
        begin_timeout: Seconds in which the message must begin; None for the limit of ordinary calls.
        small: Whether the message can only be a small one.
    """

    __slots__ = ("begin_timeout", "since", "small")

    def __init__(self, *, begin_timeout: float | None = None, small: bool = False) -> None:
        self.since = 0.0
        self.begin_timeout = begin_timeout
        self.small = small

    def peer(self) -> str:
        """Return grpcio's name of the connection's other end."""
        raise NotImplementedError

    def idle(self) -> bool:
        """Return whether the call waits for its message only, and for no answer of the engine."""
        return True


GiveUp = Callable[[Any, KsrvError], None]
"""Ends a call, given it and the reason, before its message came."""


class _Connection:
    """The received bytes of one connection.

    Attributes:
        number: Its descriptor and inode; None without a socket that counts bytes.
        taken: How many of the received bytes were handed over, or came while no call waited.
        held: How many are charged to the budget.
        called: Whether there was a call since its bytes were last looked at.
    """

    __slots__ = ("called", "held", "number", "taken")

    def __init__(self) -> None:
        self.number: tuple[int, int] | None = None
        self.taken = 0
        self.held = 0
        self.called = True


class UnfinishedCalls:
    """The calls of one server whose messages have not arrived.

    Args:
        budget: The bytes that requests may hold together.
        head: Seconds in which a message must begin to arrive.
        rate: Bytes per second at which it must arrive from then on.
        most: Calls that may wait at a time.
    """

    def __init__(self, budget: MemoryBudget, *, head: float, rate: int, most: int) -> None:
        self._budget = budget
        self._head = head
        self._rate = rate
        self._most = most
        self._calls: dict[UnfinishedCall, GiveUp] = {}
        self._connections: dict[str, _Connection] = {}
        self._lock = threading.Lock()
        self._prune_at = 0.0
        self._port = 0
        self._stopped = threading.Event()

    def start(self, port: int) -> None:
        """Begin to watch the calls.

        Args:
            port: Where the server listens.
        """
        self._port = port
        threading.Thread(target=self._run, name="ksrv-grpc-unfinished", daemon=True).start()

    def stop(self) -> None:
        """Stop watching, and give all bytes back to the budget."""
        self._stopped.set()
        with self._lock:
            for connection in self._connections.values():
                self._budget.give_back(connection.held)
                connection.held = 0

    def __len__(self) -> int:
        """Return how many calls wait."""
        return len(self._calls)

    def begin(self, call: UnfinishedCall, give_up: GiveUp) -> None:
        """Begin to wait for a call's message.

        Args:
            call: The call.
            give_up: Ends it if the message does not come.
        """
        call.since = time.monotonic()
        self._calls[call] = give_up
        if len(self._calls) > self._most:
            self._make_room()

    def end(self, call: UnfinishedCall, nbytes: int) -> bool:
        """End the wait: the message has arrived, or the client sends none.

        Args:
            call: The call.
            nbytes: The bytes of the message as it was received.

        Returns:
            Whether the call still runs; False once it was given up.
        """
        if self._calls.pop(call, _GONE) is _GONE:
            return False
        peer = call.peer()
        with self._lock:
            connection = self._connections.get(peer)
            if connection is None:
                connection = self._connections[peer] = _Connection()
            connection.called = True
            connection.taken += nbytes + CALL_BYTES
            if connection.held:
                freed = min(connection.held, nbytes)
                connection.held -= freed
                self._budget.give_back(freed)
        return True

    def _run(self) -> None:
        while not self._stopped.wait(SWEEP_SECONDS):
            self._sweep()

    def _by_peer(self) -> dict[str, list[UnfinishedCall]]:
        found: dict[str, list[UnfinishedCall]] = {}
        for call in tuple(self._calls):
            found.setdefault(call.peer(), []).append(call)
        return found

    def _give_up(self, call: UnfinishedCall, error: KsrvError) -> None:
        """End a call, unless its message came at this very moment."""
        give_up = self._calls.pop(call, None)
        if give_up is not None:
            give_up(call, error)

    def _make_room(self) -> None:
        """Give half of the calls up that wait on the connection with the most of them."""
        most = max(self._by_peer().values(), key=len, default=[])
        for call in most[: (len(most) + 1) // 2]:
            error = Overloaded(
                f"{self._most} calls wait for their messages, which is the limit, and this "
                f"connection has the most of them",
                "calls",
            )
            self._give_up(call, error)

    def _sweep(self) -> None:
        now = time.monotonic()
        by_peer = self._by_peer()
        with self._lock:
            for peer in by_peer:
                self._connections.setdefault(peer, _Connection())
            known = list(self._connections.items())
        looked_at = [
            (peer, connection)
            for peer, connection in known
            if connection.called or peer in by_peer or connection.held
        ]
        self._find_sockets(looked_at)
        for peer, connection in looked_at:
            waiting = by_peer.get(peer, [])
            unread = self._unread(connection, waits=bool(waiting))
            refusal = self._charge(connection, unread or 0)
            for call in waiting:
                if error := refusal or self._overdue(call, now, unread, len(waiting)):
                    self._give_up(call, error)
        if now >= self._prune_at:
            self._prune_at = now + PRUNE_SECONDS
            self._prune(by_peer)

    def _unread(self, connection: _Connection, *, waits: bool) -> int | None:
        """Return the bytes that are held for calls that wait; None where that is not known."""
        with self._lock:
            connection.called = False
            if connection.number is None or (got := _received(*connection.number)) is None:
                return None
            unread = got - connection.taken
            if unread < 0 or not waits:  # bytes without a waiting call are not counted
                connection.taken = got
                return 0
            return unread

    def _charge(self, connection: _Connection, unread: int) -> Overloaded | None:
        with self._lock:
            if self._stopped.is_set():
                return None
            more = unread - connection.held
            if more > 0:
                if not self._budget.reserve(more, small=unread <= SMALL_REQUEST):
                    return no_room(self._budget, more)
            else:
                self._budget.give_back(-more)
            connection.held = unread
        return None

    def _overdue(
        self, call: UnfinishedCall, now: float, unread: int | None, calls: int
    ) -> KsrvError | None:
        waited = now - call.since
        if call.small and waited > SMALL_SECONDS and (unread or 0) > SMALL:
            return BodyTooLarge(f"the request message holds more than {SMALL} bytes")
        allowed = self._head if call.begin_timeout is None else call.begin_timeout
        if unread is None:
            allowed += LONGEST_SECONDS
        else:
            allowed += min(unread / calls / self._rate, LONGEST_SECONDS)
        if waited <= allowed:
            return None
        if not call.idle():
            call.since = now
            return None
        return RequestTooSlow(
            f"no whole request message arrived within {allowed:.3g} s; it must begin in time and "
            f"make {self._rate} bytes a second, which setting 'min_transfer_rate' asks for"
        )

    def _find_sockets(self, connections: Iterable[tuple[str, _Connection]]) -> None:
        missing = {
            peer: connection
            for peer, connection in connections
            if connection.number is None and peer.startswith("ip")
        }
        if missing:
            sockets = _sockets(self._port)
            for peer, connection in missing.items():
                connection.number = sockets.get(peer)

    def _prune(self, waiting: Iterable[str]) -> None:
        with self._lock:
            for peer in self._connections.keys() - set(waiting):
                connection = self._connections[peer]
                if connection.number is None or _received(*connection.number) is None:
                    self._budget.give_back(connection.held)
                    del self._connections[peer]


_libc = ctypes.PyDLL(None)


def _received(number: int, inode: int) -> int | None:
    """Return the bytes that a TCP connection received; None once the descriptor is another's."""
    try:
        if os.fstat(number).st_ino != inode:
            return None
    except OSError:
        return None
    room = ctypes.create_string_buffer(256)
    size = ctypes.c_uint32(len(room))
    if _libc.getsockopt(number, socket.IPPROTO_TCP, socket.TCP_INFO, room, ctypes.byref(size)):
        return None
    if size.value < _TCP_INFO_BYTES_RECEIVED + 8:
        return None
    return int(struct.unpack_from("Q", room, _TCP_INFO_BYTES_RECEIVED)[0])


def _sockets(port: int) -> dict[str, tuple[int, int]]:
    """Return the descriptors and inodes of the connections to `port`, by grpcio's names of peers."""
    found = {}
    try:
        numbers = [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        return {}
    for number in numbers:
        try:
            state = os.fstat(number)
            if not stat.S_ISSOCK(state.st_mode):
                continue
            with duplicate(number) as copy:
                if copy.family not in (socket.AF_INET, socket.AF_INET6):
                    continue
                if copy.getsockname()[1] == port:
                    found[_peer_name(copy.getpeername())] = (number, state.st_ino)
        except OSError:  # closed meanwhile, or it listens
            continue
    return found


def _peer_name(address: Any) -> str:
    host = ipaddress.ip_address(address[0].partition("%")[0])
    if isinstance(host, ipaddress.IPv6Address) and host.ipv4_mapped is not None:
        host = host.ipv4_mapped
    if host.version == 4:
        return f"ipv4:{host}:{address[1]}"
    return f"ipv6:{urllib.parse.quote(f'[{host}]', safe=':')}:{address[1]}"
