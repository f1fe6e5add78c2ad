"""gRPC calls written frame by frame, to leave out what every client library sends."""

import select
import socket
import ssl
from typing import Any
from urllib.parse import unquote_to_bytes

from hpack import Decoder

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
ACK = END_STREAM = 1
END_HEADERS = 4
WINDOW = 65_535
GRPC_HEAD = {
    ":method": "POST",
    ":scheme": "http",
    ":path": "",
    ":authority": "localhost",
    "te": "trailers",
    "content-type": "application/grpc",
}
"""The fields of a call, without its path."""
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, SETTINGS, 0, 0, 0, 0, 0])


def frame(kind: int, flags: Any, stream: Any, payload: bytes = b"") -> Any:
    return (
        len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload
    )


def field(name: str, value: Any) -> Any:
    """A header field for HPACK: literal, not indexed, not compressed."""
    parts = [len(text).to_bytes(1, "big") + text.encode() for text in (name, value)]
    return b"\x00" + b"".join(parts)


class Wire:
    """One HTTP/2 connection.

    Attributes:
        ended: The last fields of every call that the server ended, as text by its stream.
        begun: The status of every answer that has begun, by its stream.
        over: Whether the server closed the connection, or said that it will.
        closed: Whether the server closed the connection.
        goodbye: The error code of GOAWAY, or None.
        resets: The error code of RST_STREAM, by its stream.
        data: The frames of data of the answers, in the order in which they came.
    """

    def __init__(self, address: str, tls: ssl.SSLContext | None = None) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=60)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket)
        self.socket.sendall(PREFACE)
        self.ended: dict[int, Any] = {}
        self.begun: dict[int, int] = {}
        self.over = self.closed = False
        self.goodbye: int | None = None
        self.resets: dict[int, int] = {}
        self.data: list[bytes] = []
        self._buffer = b""
        self._decoder = Decoder()
        self._next = 1
        self._initial = WINDOW
        self._windows = {0: WINDOW}
        self._fields: dict[Any, bytes] = {}

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: Any) -> None:
        self.socket.close()

    def call(
        self,
        path: str,
        *,
        message: Any = None,
        authorization: Any = None,
        timeout: str | None = None,
        encoding: str | None = None,
        fields: Any = (),
    ) -> Any:
        """Open a call, and end it if it has a message; return its stream."""
        stream, self._next = self._next, self._next + 2
        self._windows[stream] = self._initial
        names = GRPC_HEAD | {":path": path, **dict(fields)}
        if authorization:
            names["authorization"] = authorization
        if timeout:
            names["grpc-timeout"] = timeout
        if encoding:
            names["grpc-encoding"] = encoding
        block = b"".join(field(*pair) for pair in names.items())
        sent = frame(HEADERS, END_HEADERS, stream, block)
        if message is not None:
            whole = b"\x00" + len(message).to_bytes(4, "big") + message
            sent += frame(DATA, END_STREAM, stream, whole)
        self.socket.sendall(sent)
        return stream

    def begin_message(self, stream: Any, announced: Any) -> None:
        """Announce a message of so many bytes."""
        self.send(stream, b"\x00" + announced.to_bytes(4, "big"))

    def send(self, stream: Any, data: Any, *, last: bool = False) -> Any:
        """Send a call's data as its windows allow; return how much, less if the call ended."""
        sent = 0
        while sent < len(data) and stream not in self.ended and not self.over:
            room = min(self._windows[0], self._windows[stream], 16_384, len(data) - sent)
            if room <= 0:
                self.read()
                continue
            piece = data[sent : sent + room]
            sent += room
            flags = END_STREAM if last and sent == len(data) else 0
            try:
                self.socket.sendall(frame(DATA, flags, stream, piece))
            except ConnectionError:
                self.over = True
            self._windows[0] -= room
            self._windows[stream] -= room
            self.look()
        return sent

    def look(self) -> None:
        while not self.over and (self._decrypted() or select.select([self.socket], [], [], 0)[0]):
            self.read()

    def _decrypted(self) -> bool:
        return isinstance(self.socket, ssl.SSLSocket) and self.socket.pending() > 0

    def until_ended(self, stream: Any) -> Any:
        while stream not in self.ended and not self.over:
            self.read()
        return self.ended[stream]

    def until_over(self) -> None:
        while not self.over:
            self.read()

    def until_closed(self) -> None:
        """Read what the server sends after its GOAWAY, too."""
        while not self.closed:
            self.read()

    def read(self) -> None:
        try:
            got = self.socket.recv(65_536)
        except ConnectionError:
            got = b""
        if not got:
            self.over = self.closed = True
        self._buffer += got
        while len(self._buffer) >= 9:
            length = int.from_bytes(self._buffer[:3], "big")
            if len(self._buffer) < 9 + length:
                return
            kind, flags = self._buffer[3:5]
            stream = int.from_bytes(self._buffer[5:9], "big") & 0x7FFFFFFF
            payload = self._buffer[9 : 9 + length]
            self._buffer = self._buffer[9 + length :]
            self._take(kind, flags, stream, payload)

    def _take(self, kind: int, flags: Any, stream: Any, payload: Any) -> None:
        if kind == SETTINGS and not flags & ACK:
            for start in range(0, len(payload), 6):
                if payload[start : start + 2] == b"\x00\x04":
                    new = int.from_bytes(payload[start + 2 : start + 6], "big")
                    for open_stream in self._windows.keys() - {0}:
                        self._windows[open_stream] += new - self._initial
                    self._initial = new
            self.socket.sendall(frame(SETTINGS, ACK, 0))
        elif kind == PING and not flags & ACK:
            self.socket.sendall(frame(PING, ACK, 0, payload))
        elif kind == WINDOW_UPDATE:
            self._windows[stream] = self._windows.get(stream, 0) + int.from_bytes(payload, "big")
        elif kind == GOAWAY:
            self.over = True
            self.goodbye = int.from_bytes(payload[4:8], "big")
        elif kind == HEADERS:
            fields = self._decoder.decode(payload, raw=True)
            self.begun.setdefault(stream, int(dict(fields).get(b":status", 0)))
            lines = (name + b": " + unquote_to_bytes(value) for name, value in fields)
            self._fields[stream] = b"\n".join(lines)
            if flags & END_STREAM:
                self.ended[stream] = self._fields[stream]
        elif kind == DATA:
            self.data.append(payload)
            if flags & END_STREAM:  # an answer that is not gRPC's has no trailers
                self.ended[stream] = self._fields[stream]
        elif kind == RST_STREAM:
            self.ended.setdefault(stream, b"")
            self.resets[stream] = int.from_bytes(payload, "big")
