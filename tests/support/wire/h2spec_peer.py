"""Requests and looks for the cases of h2spec: what is sent frame by frame, and how the server takes it."""

import contextlib
from collections.abc import Callable
from typing import Any

from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH

from tests.support.wire.http2_wire import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    RST_STREAM,
    WINDOW_UPDATE,
    Wire,
    field,
    frame,
)

PRIORITY, PUSH_PROMISE, CONTINUATION = 2, 5, 9
PADDED, WITH_PRIORITY = 8, 32
FRAME_SIZE = 1 << 20  # what the server announces
NO_ERROR, PROTOCOL_ERROR, FLOW_CONTROL, STREAM_CLOSED, TOO_LARGE, REFUSED, COMPRESSION = (
    0, 1, 3, 5, 6, 7, 9,
)  # fmt: skip

Fields = list[tuple[str, str]]


class Good:
    """A call that is answered with status 200, in frames."""

    @property
    def fields(self) -> Fields:
        return [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", "/inference.GRPCInferenceService/ServerLive"),
            (":authority", "x"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
        ]

    @property
    def body(self) -> bytes:
        return bytes(5)

    def large(self, length: int) -> bytes:
        """A body of so many bytes, with a field that nobody knows."""
        text = bytes(length - 9)
        unknown = b"\x7a" + bytes(
            [len(text) & 127 | 128, len(text) >> 7 & 127 | 128, len(text) >> 14]
        )
        message = unknown + text
        return b"\0" + len(message).to_bytes(4, "big") + message

    def without(self, *names: str) -> Fields:
        return [pair for pair in self.fields if pair[0] not in names]

    @property
    def block(self) -> bytes:
        return block(self.fields)

    def head(self, stream: int = 1, *, flags: int = END_HEADERS, more: bytes = b"") -> bytes:
        return frame(HEADERS, flags, stream, self.block + more)

    def data(self, stream: int = 1) -> bytes:
        return frame(DATA, END_STREAM, stream, self.body)

    def whole(self, stream: int = 1) -> bytes:
        return self.head(stream) + self.data(stream)


def block(fields: Fields) -> bytes:
    return b"".join(field(*pair) for pair in fields)


def text(value: str, *, huffman: bool = False) -> bytes:
    """A string of HPACK."""
    raw = value.encode()
    if huffman:
        raw = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH).encode(raw)
    return bytes([len(raw) | (128 if huffman else 0)]) + raw


def priority(on: int, parent: int = 0, weight: int = 15, *, exclusive: bool = False) -> bytes:
    whole = parent | (1 << 31 if exclusive else 0)
    return frame(PRIORITY, 0, on, whole.to_bytes(4, "big") + bytes([weight]))


def setting(number: int, value: int) -> bytes:
    return number.to_bytes(2, "big") + value.to_bytes(4, "big")


def update(stream: int, by: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, by.to_bytes(4, "big"))


RESET = frame(RST_STREAM, 0, 1, (8).to_bytes(4, "big"))
WAIT = b"until the first stream is answered"


class Recorder(Wire):
    """A connection that keeps the frames which come."""

    def __init__(self, address: str) -> None:
        self.frames: list[tuple[int, int, int, bytes]] = []
        super().__init__(address)

    def _take(self, kind: int, flags: Any, stream: Any, payload: Any) -> None:
        self.frames.append((kind, flags, stream, payload))
        super()._take(kind, flags, stream, payload)

    def errors(self, kind: int) -> list[int]:
        """The codes of all frames of a kind that report an error."""
        at = 4 if kind == GOAWAY else 0
        return [int.from_bytes(one[3][at : at + 4], "big") for one in self.frames if one[0] == kind]

    def has_answered(self, stream: int = 1) -> bool:
        return any(
            one[2] == stream and one[0] in (HEADERS, DATA) and one[1] & END_STREAM
            for one in self.frames
        )

    def pongs(self) -> list[bytes]:
        return [one[3] for one in self.frames if one[0] == PING and one[1] & ACK]

    def until(self, found: Callable[[], bool]) -> None:
        while not found() and not self.over:
            self.read()
        assert found(), self.frames


def answered(stream: int = 1) -> Callable[[Recorder], None]:
    def look(wire: Recorder) -> None:
        wire.until(lambda: wire.has_answered(stream))
        assert wire.begun[stream] == 200
        alive(wire)

    return look


def alive(wire: Recorder) -> None:
    wire.socket.sendall(frame(PING, 0, 0, b"are you?"))
    wire.until(lambda: b"are you?" in wire.pongs())
    assert not wire.over


def connection_error(*codes: int) -> Callable[[Recorder], None]:
    def look(wire: Recorder) -> None:
        wire.until_over()
        assert wire.goodbye in codes, wire.frames

    return look


def stream_error(*codes: int) -> Callable[[Recorder], None]:
    def look(wire: Recorder) -> None:
        def told() -> list[int]:
            return wire.errors(RST_STREAM) + wire.errors(GOAWAY)

        wire.until(lambda: bool(told()))
        assert told()[0] in codes, wire.frames

    return look


def closed_before(wire: Recorder) -> None:
    """The stream was closed: its frames are an error, or ignored as RFC 9113 allows."""
    wire.socket.sendall(frame(PING, 0, 0, b"are you?"))
    wire.until(lambda: wire.over or b"are you?" in wire.pongs())
    assert set(wire.errors(GOAWAY) + wire.errors(RST_STREAM)) <= {STREAM_CLOSED}, wire.frames
    assert len([one for one in wire.frames if one[0] == HEADERS and not one[1] & END_STREAM]) <= 1


def ends_well(wire: Recorder) -> None:
    """The peer has sent GOAWAY: its requests are answered, without an error."""
    with contextlib.suppress(OSError):
        wire.socket.sendall(frame(PING, 0, 0, b"are you?"))
    wire.until(lambda: wire.over or b"are you?" in wire.pongs())
    assert set(wire.errors(GOAWAY)) <= {NO_ERROR}
    assert wire.errors(RST_STREAM) == []
