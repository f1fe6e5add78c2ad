"""The ways by which all tests of behaviour can be run: over TLS, in chunks, with handlers in processes.

`pytest --way tls` has every server that tests start encrypt, and puts a relay in front of it that clients
speak plainly to, so that every test sends what it always sends. `--way chunked` puts a relay there that
sends bodies of a known length in chunks. `--way process` runs the models of a server that name no executor
in separate processes.

Tests of what a way changes by its nature, as a `Content-Length` beyond the limit, have the marker `differs_by`.
"""

import contextlib
import functools
import re
import select
import socket
import ssl
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from ksrv.testing import Server
from tests.support.certificates import self_signed

WAYS = ("plain", "tls", "chunked", "process")
_READ = 65536
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]+)[ \t]*(?=\r\n|$)", re.IGNORECASE)
_FRAMED = re.compile(rb"\r\ntransfer-encoding:", re.IGNORECASE)
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HTTP_1_1 = re.compile(rb"[A-Z]+ [^ \r\n]+ HTTP/1\.1\r\n")


class Reframer:
    """Sends messages whose length is known in chunks; what is no such message stays as it is."""

    def __init__(self) -> None:
        self._head = b""
        self._left = 0
        self._blind = False
        self._chunk = 0

    def __call__(self, data: bytes) -> bytes:
        """Return what is sent on for the next bytes of a client."""
        sent = b""
        while data and not self._blind:
            if self._left:
                self._chunk = self._chunk % 5000 + 37
                piece = data[: min(self._left, self._chunk)]
                data = data[len(piece) :]
                self._left -= len(piece)
                sent += b"%x\r\n%s\r\n" % (len(piece), piece)
                if not self._left:
                    sent += b"0\r\n\r\n"
                continue
            head, end, rest = (self._head + data).partition(b"\r\n\r\n")
            if not end:
                self._head = head
                if not _could_begin(head):
                    self._blind, data = True, head
                    break
                return sent
            self._head, data = b"", rest
            lengths = _LENGTH.findall(head)
            if _HTTP_1_1.match(head) is None or _FRAMED.search(head) or len(lengths) > 1:
                self._blind, data = True, head + end + rest
                break
            if lengths and 0 < int(lengths[0]) < 1 << 40:
                self._left = int(lengths[0])
                head = _LENGTH.sub(b"\r\nTransfer-Encoding: chunked", head)
            sent += head + end
        return sent + data


def _could_begin(head: bytes) -> bool:
    """Whether bytes may become a head; bytes that are not HTTP are passed on at once."""
    return len(head) < 16384 and re.match(rb"[A-Z]*( |$)", head) is not None


class _Plain:
    """A connection to the server as it is."""

    def __init__(self, socket: socket.socket) -> None:
        self._socket = socket
        self.to_send = b""
        self.ended = False

    def put(self, data: bytes) -> None:
        self.to_send += data

    def take(self) -> bytes | None:
        return self._socket.recv(_READ) or None

    def end(self) -> None:
        """Nothing more is put."""
        self.ended = True


class _Encrypted:
    """A connection to the server with TLS, whose every call is the relay's one thread's.

    The handshake begins once the client's first bytes show which HTTP it speaks.
    """

    def __init__(self, socket: socket.socket, cert: Path) -> None:
        self._socket, self._cert = socket, cert
        self._received, self._sent = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls: ssl.SSLObject | None = None
        self._waiting = b""
        self._agreed = self._ending = self.ended = False
        self.to_send = b""

    def put(self, data: bytes) -> None:
        self._waiting += data
        self._go_on()

    def take(self) -> bytes | None:
        data = self._socket.recv(_READ)
        if data:
            self._received.write(data)
        else:
            self._received.write_eof()
        self._go_on()
        if self._tls is None or not self._agreed:
            return b"" if data else None
        plain = b""
        try:
            while piece := self._tls.read(_READ):
                plain += piece
        except ssl.SSLWantReadError:
            return plain
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            pass
        self._flush()
        return plain or None

    def end(self) -> None:
        self._ending = True
        self._go_on()

    def _go_on(self) -> None:
        if self._tls is None:
            protocol = "http/1.1" if self._ending else _protocol_of(self._waiting)
            if protocol is None:
                return
            self._tls = _tls_context(self._cert, protocol).wrap_bio(
                self._received, self._sent, server_hostname="127.0.0.1"
            )
        try:
            if not self._agreed:
                self._tls.do_handshake()
                self._agreed = True
            while self._waiting:
                self._waiting = self._waiting[self._tls.write(self._waiting) :]
            if self._ending and not self.ended:
                self.ended = True
                self._tls.unwrap()
        except ssl.SSLWantReadError:
            pass
        self._flush()

    def _flush(self) -> None:
        self.to_send += self._sent.read()


def _protocol_of(begin: bytes) -> str | None:
    """Return the protocol, by its name in ALPN, of a client that begins so; None if it may yet be either."""
    if begin.startswith(_PREFACE):
        return "h2"
    return None if _PREFACE.startswith(begin) else "http/1.1"


@functools.cache
def _tls_context(cert: Path, protocol: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(cert))
    context.set_alpn_protocols([protocol])
    return context


class Relay:
    """Stands in front of a server's port: clients speak plainly to it."""

    def __init__(
        self,
        target: str,
        cert: Path | None = None,
        reframer: Callable[[], Callable[[bytes], bytes]] | None = None,
    ) -> None:
        host, _, port = target.rpartition(":")
        self._target = host.strip("[]"), int(port)
        self._cert, self._reframer = cert, reframer
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((self._target[0], 0), family=family, backlog=512)
        self.address = f"{host}:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client:
            try:
                server = socket.create_connection(self._target)
            except OSError:
                _reset(client)
                return
            with server:
                try:
                    self._relay(client, server)
                except OSError:  # one of both was reset: so is the other
                    _reset(client)
                    _reset(server)

    def _relay(self, client: socket.socket, server: socket.socket) -> None:
        for end in (client, server):
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        upstream = _Encrypted(server, self._cert) if self._cert else _Plain(server)
        reframe = self._reframer() if self._reframer else None
        to_client = b""
        client_reads = server_reads = True  # until each has said its last
        client_told = server_told = False
        while not (client_told and server_told):
            wanted = dict.fromkeys((client, server), 0)
            wanted[client] |= select.POLLIN if client_reads and len(upstream.to_send) < _READ else 0
            wanted[server] |= select.POLLIN if server_reads and len(to_client) < _READ else 0
            wanted[server] |= select.POLLOUT if upstream.to_send else 0
            wanted[client] |= select.POLLOUT if to_client else 0
            readable, writable = _wait(wanted)
            if client in readable:
                data = client.recv(_READ)
                if data:
                    upstream.put(reframe(data) if reframe else data)
                else:
                    client_reads = False
                    upstream.end()
            if server in readable:
                answer = upstream.take()
                if answer is None:
                    server_reads = False
                else:
                    to_client += answer
            if server in writable:
                upstream.to_send = upstream.to_send[server.send(upstream.to_send) :]
            if client in writable:
                to_client = to_client[client.send(to_client) :]
            if upstream.ended and not upstream.to_send and not server_told:
                server.shutdown(socket.SHUT_WR)
                server_told = True
            if not server_reads and not to_client and not client_told:
                client.shutdown(socket.SHUT_WR)
                client_told = True


def _wait(wanted: dict[socket.socket, int]) -> tuple[list[socket.socket], list[socket.socket]]:
    """Return the readable sockets and the writable sockets."""
    poll = select.poll()
    for end, events in wanted.items():
        poll.register(end, events)
    got = dict(poll.poll())
    for end in wanted:
        if got.get(end.fileno(), 0) & select.POLLERR:
            raise OSError(end.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), "a peer was reset")
    ready = select.POLLIN | select.POLLHUP
    return (
        [end for end, events in wanted.items() if events and got.get(end.fileno(), 0) & ready],
        [end for end in wanted if got.get(end.fileno(), 0) & select.POLLOUT],
    )


def _reset(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _run_in_processes(path: Path) -> None:
    """Have the models below a path that name no executor run in processes."""
    for file in [path] if path.suffix == ".yaml" else path.rglob("model.yaml"):
        with contextlib.suppress(OSError, yaml.YAMLError, UnicodeDecodeError, RecursionError):
            text = file.read_text(encoding="utf-8")
            read = yaml.safe_load(text)
            if isinstance(read, dict) and "executor" not in read and not text.endswith("}\n"):
                file.write_text(text.rstrip("\n") + "\nexecutor: process\n", encoding="utf-8")


@contextlib.contextmanager
def servers_by_way(way: str) -> Iterator[None]:
    """Have every `ksrv.testing.Server` that starts meanwhile serve by a way."""
    if way == "plain":
        yield
        return
    start, end = Server.start, Server.__exit__
    with tempfile.TemporaryDirectory() as folder:
        key, cert = self_signed(Path(folder)) if way == "tls" else (None, None)

        def start_by_way(self: Any) -> None:
            self.relays = []
            if way == "process":
                for path in self.targets:
                    _run_in_processes(Path(path))
            on_paths = "unix" in f"{self._settings['http']} {self._settings['grpc']}"
            own_tls = any(name.startswith("tls_") for name in self._settings)
            encrypts = way == "tls" and not own_tls and not on_paths
            if encrypts:
                self._settings |= {"tls_cert": str(cert), "tls_key": str(key)}
            start(self)
            if encrypts:
                del self._settings["tls_cert"], self._settings["tls_key"]
                self.http = _relayed(self, self.http, cert)
                self.grpc = _relayed(self, self.grpc, cert)
            elif way == "chunked" and not own_tls and not on_paths:
                self.http = _relayed(self, self.http, None, Reframer)

        def end_by_way(self: Any, *how: Any) -> None:
            try:
                end(self, *how)
            finally:
                for relay in self.relays:
                    relay.close()

        Server.start = start_by_way  # type: ignore[method-assign]
        Server.__exit__ = end_by_way  # type: ignore[method-assign]
        try:
            yield
        finally:
            Server.start, Server.__exit__ = start, end  # type: ignore[method-assign]


def _relayed(server: Any, target: str, *how: Any) -> str:
    if not target or target.startswith(("unix:", "/")):
        return target
    server.relays.append(Relay(target, *how))
    address: str = server.relays[-1].address
    return address
