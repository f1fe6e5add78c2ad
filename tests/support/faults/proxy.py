"""A TCP proxy that breaks connections as networks do, by a plan that a seed repeats."""

import asyncio
import contextlib
import random
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

_PIECE_BYTES = 1 << 16
_SLOW_PIECES = 40
"""Pieces that a slow fault holds up; the rest passes freely, so that every connection ends in seconds."""

SLOW = ("delay", "throttle")
"""Faults that keep every byte."""
DESTRUCTIVE = ("cut", "reset", "half-close", "corrupt")
KINDS = ("none", *SLOW, *DESTRUCTIVE)


@dataclass(frozen=True)
class Fault:
    """A fault of one connection.

    Attributes:
        kind: One of KINDS: `cut` closes both sides, `reset` resets both, `half-close` ends one direction and
            drops its later bytes, `corrupt` changes one byte, `throttle` sends few bytes at a time.
        towards: The direction that it is about.
        after: How many bytes pass in that direction before it.
        pause: Seconds between the pieces of a slow fault.
        mask: Exclusive or of the corrupted byte; never 0.
    """

    kind: str = "none"
    towards: Literal["server", "client"] = "server"
    after: int = 0
    pause: float = 0.0
    mask: int = 1

    @property
    def harmless(self) -> bool:
        """Whether every byte arrives as it was sent."""
        return self.kind not in DESTRUCTIVE


def draw_fault(choose: random.Random, kinds: tuple[str, ...] = KINDS) -> Fault:
    """Return a fault that strikes within the first kilobytes, or now and then far into a large body."""
    return Fault(
        kind=choose.choice(kinds),
        towards=choose.choice(("server", "client")),
        after=int(2 ** choose.uniform(0, choose.choice((10, 12, 18)))),
        pause=choose.uniform(0.0005, 0.01),
        mask=choose.randint(1, 255),
    )


class _Broken(Exception):
    """A fault has ended the connection."""

    def __init__(self, resets: bool) -> None:
        self.resets = resets


class FaultProxy:
    """Listens on new ports and passes bytes on to a server; each port has another sequence of faults."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy")
        self._servers: list[asyncio.Server] = []
        self._connections: set[asyncio.Task[None]] = set()

    def __enter__(self) -> "FaultProxy":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60)

    def listen(self, next_fault: Callable[[], Fault]) -> str:
        address: str = self._run(self._listen(next_fault))
        return address

    async def _listen(self, next_fault: Callable[[], Fault]) -> str:
        def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = self._loop.create_task(self._serve(reader, writer, next_fault()))
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)

        server = await asyncio.start_server(accepted, "127.0.0.1", 0)
        self._servers.append(server)
        host, port = server.sockets[0].getsockname()
        return f"{host}:{port}"

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, fault: Fault
    ) -> None:
        try:
            there = await asyncio.open_connection(*self._target)
        except OSError:
            _end(writer, resets=True)
            return
        pumps = [
            asyncio.ensure_future(
                _pump(source, sink, fault if fault.towards == towards else Fault())
            )
            for source, sink, towards in (
                (reader, there[1], "server"),
                (there[0], writer, "client"),
            )
        ]
        resets = False
        try:
            await asyncio.gather(*pumps)
        except _Broken as broken:
            resets = broken.resets
        except OSError:
            resets = True  # one side has reset its connection: reset the other side too
        finally:
            for pump in pumps:
                pump.cancel()
            for sink in (writer, there[1]):
                _end(sink, resets)


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, fault: Fault) -> None:
    """Pass on one direction of a connection until it ends or its fault ends it."""
    passed = 0
    pieces = _pieces(fault)
    while content := await source.read(_PIECE_BYTES):
        before, behind = content[: max(0, fault.after - passed)], content[fault.after - passed :]
        if passed >= fault.after:
            before, behind = b"", content
        struck = passed <= fault.after < passed + len(content)
        passed += len(content)
        sink.write(before)
        if struck and fault.kind in ("cut", "reset"):
            with contextlib.suppress(OSError):
                await asyncio.wait_for(sink.drain(), 1)
            raise _Broken(fault.kind == "reset")
        if struck and fault.kind == "half-close":
            sink.write_eof()
            while await source.read(_PIECE_BYTES):
                pass
            raise _Broken(False)
        if struck and fault.kind == "corrupt":
            behind = bytes([behind[0] ^ fault.mask]) + behind[1:]
        for size, pause in pieces if fault.kind in SLOW else ():
            sink.write(behind[:size])
            behind = behind[size:]
            await asyncio.sleep(pause)
            if not behind:
                break
        sink.write(behind)
        await sink.drain()
    with contextlib.suppress(OSError):
        sink.write_eof()


def _pieces(fault: Fault) -> Iterator[tuple[int, float]]:
    """Return the size of each piece of a slow fault and the pause after it."""
    size = _PIECE_BYTES if fault.kind == "delay" else fault.mask
    return iter([(size, fault.pause)] * _SLOW_PIECES)


def _end(writer: asyncio.StreamWriter, resets: bool) -> None:
    """Close a connection, with a reset if so asked."""
    if resets:
        sock: socket.socket = writer.get_extra_info("socket")
        with contextlib.suppress(OSError):  # it is closed already
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
    else:
        writer.close()
