"""Connections that send one fixed request again and again, and look at each answer.

They need only sockets: the guard runs without a load generator, and a client that computes little
leaves the processor to the server, which valgrind slows down.
"""

import abc
import re
import socket
from collections.abc import Iterable

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 7, 8
END_STREAM, END_HEADERS, ACK = 1, 4, 1


class Connection(abc.ABC):
    """A connection to a port of this machine, without Nagle's delay."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=120)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._bytes = b""

    @abc.abstractmethod
    def ask(self) -> bytes:
        """Send the request and return the body of its answer."""

    def take(self, count: int) -> bytes:
        """Return the next bytes that the server sends, so many of them."""
        while len(self._bytes) < count:
            self._receive()
        taken, self._bytes = self._bytes[:count], self._bytes[count:]
        return taken

    def take_until(self, end: bytes) -> bytes:
        """Return what the server sends up to and with an end."""
        while end not in self._bytes:
            self._receive()
        return self.take(self._bytes.index(end) + len(end))

    def _receive(self) -> None:
        got = self.socket.recv(1 << 20)
        if not got:
            raise RuntimeError("the server closed the connection")
        self._bytes += got


class Http1Connection(Connection):
    """Sends a POST request over HTTP/1.1."""

    def __init__(self, port: int, path: str, fields: Iterable[tuple[str, str]], body: bytes):
        super().__init__(port)
        lines = [f"{name}: {value}\r\n" for name, value in fields]
        head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\n{''.join(lines)}"
        self._request = f"{head}content-length: {len(body)}\r\n\r\n".encode() + body

    def ask(self) -> bytes:
        """Send the request and return the body of its answer.

        Raises:
            RuntimeError: The answer has another status than 200.
        """
        self.socket.sendall(self._request)
        head = self.take_until(b"\r\n\r\n")
        length = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
        body = self.take(int(length[1])) if length else self.take_until(b"0\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200 "):
            raise RuntimeError(f"the server answered {head + body!r}")
        return body


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Return one frame of HTTP/2."""
    head = len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big")
    return head + payload


def literal(text: str) -> bytes:
    """Return a string of HPACK without Huffman's code (RFC 7541 5.2); it has less than 255 bytes."""
    raw = text.encode()
    length = bytes([len(raw)]) if len(raw) < 127 else bytes([127, len(raw) - 127])
    return length + raw


class Http2Connection(Connection):
    """Sends a POST request over HTTP/2, one stream after the other.

    Its header block indexes nothing, so that each request has the same bytes but for the stream's number.
    """

    def __init__(self, port: int, path: str, fields: Iterable[tuple[str, str]], body: bytes):
        super().__init__(port)
        pseudo = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "a")]
        self._head = b"".join(b"\0" + literal(n) + literal(v) for n, v in [*pseudo, *fields])
        self._body = body
        self._stream = -1
        window = frame(WINDOW_UPDATE, 0, 0, (1 << 30).to_bytes(4, "big"))
        self.socket.sendall(PREFACE + frame(SETTINGS, 0, 0, b"") + window)

    def ask(self) -> bytes:
        """Send the request and return the body of its answer.

        Raises:
            RuntimeError: The server reset the stream or closes the connection.
        """
        self._stream += 2
        data = frame(DATA, END_STREAM, self._stream, self._body)
        self.socket.sendall(frame(HEADERS, END_HEADERS, self._stream, self._head) + data)
        answer, ended = b"", False
        while not ended:
            head = self.take(9)
            payload = self.take(int.from_bytes(head[:3], "big"))
            kind, flags, stream = head[3], head[4], int.from_bytes(head[5:], "big")
            if kind in (RESET, GOAWAY):
                raise RuntimeError(f"the server sent frame {kind} with {payload!r}")
            if kind == SETTINGS and not flags & ACK:
                self.socket.sendall(frame(SETTINGS, ACK, 0, b""))
            if stream == self._stream:
                answer += payload if kind == DATA else b""
                ended = bool(flags & END_STREAM)
        return answer
