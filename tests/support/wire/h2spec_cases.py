"""The cases of h2spec (github.com/summerwind/h2spec) for servers, each under its number there.

They are written from RFC 9113 and RFC 7541, in frames that the tests make. A peer that breaks the protocol gets the reason by
GOAWAY or RST_STREAM; allowed requests are answered.

Four cases differ, for a reason: 3.5/2 has an answer of HTTP/1.1 on the address of HTTP, which speaks both. The
frames of 4.2 are measured by the size that this server announces, 1 MiB. A stream whose number is below an earlier
one's (5.1.1/2) is ignored by libnghttp2, and paid for as a stream that is refused. Frames on closed streams (5.1/8
to 12) are errors for libnghttp2 as long as it remembers the stream; RFC 9113 lets a server ignore them.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tests.support.wire.h2spec_peer import (
    COMPRESSION,
    CONTINUATION,
    FLOW_CONTROL,
    FRAME_SIZE,
    PADDED,
    PRIORITY,
    PROTOCOL_ERROR,
    PUSH_PROMISE,
    REFUSED,
    RESET,
    STREAM_CLOSED,
    TOO_LARGE,
    WAIT,
    WITH_PRIORITY,
    Good,
    Recorder,
    alive,
    answered,
    block,
    closed_before,
    connection_error,
    ends_well,
    priority,
    setting,
    stream_error,
    text,
    update,
)
from tests.support.wire.http2_wire import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    field,
    frame,
)


@dataclass(frozen=True)
class Case:
    """Bytes that are sent after the preface, and the server's reaction."""

    number: str
    send: Callable[[Good], list[bytes] | bytes]
    look: Callable[[Recorder], None]


def with_padding(flags: int, payload: bytes, pad: int, *, claims: int | None = None) -> bytes:
    claimed = pad if claims is None else claims
    kind = HEADERS if flags & END_HEADERS else DATA
    return frame(kind, flags | PADDED, 1, bytes([claimed]) + payload + bytes(pad))


def refused_fields(
    *pairs: tuple[str, str], without: tuple[str, ...] = (), first: bool = False
) -> Callable[[Good], bytes]:
    """A request with additional or replaced fields."""

    def send(good: Good) -> bytes:
        own = good.without(*without)
        fields = [*pairs, *own] if first else [*own, *pairs]
        return frame(HEADERS, END_HEADERS, 1, block(fields)) + good.data()

    return send


def hpack_field(begins: bytes, *, huffman: bool, named: bool) -> Callable[[Good], bytes]:
    """A request with one field more, in a given representation."""

    def send(good: Good) -> bytes:
        name = b"" if named else text("x-test", huffman=huffman)
        return good.head(more=begins + name + text("text", huffman=huffman)) + good.data()

    return send


def whole_behind(begins: bytes) -> Callable[[Good], bytes]:
    """A request whose block begins with these bytes."""
    return lambda good: frame(HEADERS, END_HEADERS, 1, begins + good.block) + good.data()


def head_with(more: bytes) -> Callable[[Good], bytes]:
    return lambda good: good.head(more=more)


def one_setting(which: int, value: int) -> Callable[[Good], bytes]:
    return lambda _: frame(SETTINGS, 0, 0, setting(which, value))


GENERIC = [
    Case("generic/1/1", lambda good: good.whole(), answered()),
    Case("generic/2/1", lambda good: priority(1) + good.whole(), answered()),
    Case("generic/2/2", lambda good: good.whole() + update(1, 1), answered()),
    Case("generic/2/3", lambda good: good.whole() + priority(1), answered()),
    Case("generic/2/4", lambda good: good.whole() + RESET, alive),
    Case("generic/2/5", lambda good: [good.whole(), WAIT, priority(1)], alive),
    Case("generic/3.1/1", lambda good: good.whole(), answered()),
    Case(
        "generic/3.1/2",
        lambda good: (
            good.head() + frame(DATA, 0, 1, good.body[:2]) + frame(DATA, 1, 1, good.body[2:])
        ),
        answered(),
    ),
    Case(
        "generic/3.1/3",
        lambda good: good.head() + with_padding(END_STREAM, good.body, 8),
        answered(),
    ),
    Case("generic/3.2/1", lambda good: good.whole(), answered()),
    Case(
        "generic/3.2/2",
        lambda good: with_padding(END_HEADERS, good.block, 8) + good.data(),
        answered(),
    ),
    Case(
        "generic/3.2/3",
        lambda good: (
            frame(HEADERS, END_HEADERS | WITH_PRIORITY, 1, bytes(4) + b"\xff" + good.block)
            + good.data()
        ),
        answered(),
    ),
    Case("generic/3.3/1", lambda good: priority(1, weight=0) + good.whole(), answered()),
    Case("generic/3.3/2", lambda good: priority(1, weight=255) + good.whole(), answered()),
    Case("generic/3.3/3", lambda good: priority(3, 1) + good.whole(), answered()),
    Case("generic/3.3/4", lambda good: priority(3, 1, exclusive=True) + good.whole(), answered()),
    Case("generic/3.3/5", lambda good: priority(3) + good.whole(), answered()),
    Case("generic/3.4/1", lambda good: good.head() + RESET, alive),
    Case("generic/3.5/1", lambda _: frame(SETTINGS, 0, 0, setting(3, 100)), alive),
    Case("generic/3.7/1", lambda _: b"", alive),
    Case("generic/3.8/1", lambda good: good.whole() + frame(GOAWAY, 0, 0, bytes(8)), ends_well),
    Case("generic/3.9/1", lambda good: update(0, 1) + good.whole(), answered()),
    Case("generic/3.9/2", lambda good: good.head() + update(1, 1) + good.data(), answered()),
    Case(
        "generic/3.10/1",
        lambda good: (
            frame(HEADERS, 0, 1, good.block[:20])
            + frame(CONTINUATION, END_HEADERS, 1, good.block[20:])
            + good.data()
        ),
        answered(),
    ),
    Case(
        "generic/3.10/2",
        lambda good: (
            frame(HEADERS, 0, 1, good.block[:20])
            + frame(CONTINUATION, 0, 1, good.block[20:30])
            + frame(CONTINUATION, END_HEADERS, 1, good.block[30:])
            + good.data()
        ),
        answered(),
    ),
    Case("generic/4/3", lambda good: good.whole(), answered()),
    Case(
        "generic/4/4",
        lambda good: (
            good.head()
            + frame(DATA, 0, 1, good.body)
            + frame(HEADERS, END_HEADERS | END_STREAM, 1, field("x-test", "ok"))
        ),
        answered(),
    ),
    Case("generic/5/1", lambda good: good.head(more=b"\x90") + good.data(), answered()),
    *(
        Case(f"generic/5/{number}", hpack_field(begins, huffman=huffman, named=named), answered())
        for number, begins, named, huffman in [
            (2, b"\x53", True, False),
            (3, b"\x53", True, True),
            (4, b"\x40", False, False),
            (5, b"\x40", False, True),
            (6, b"\x0f\x04", True, False),
            (7, b"\x0f\x04", True, True),
            (8, b"\x00", False, False),
            (9, b"\x00", False, True),
            (10, b"\x1f\x04", True, False),
            (11, b"\x1f\x04", True, True),
            (12, b"\x10", False, False),
            (13, b"\x10", False, True),
        ]
    ),
    *(
        Case(
            f"generic/5/{number}",
            whole_behind(begins),
            answered(),
        )
        for number, begins in [(14, b"\x3f\xe1\x1f"), (15, b"\x20\x3f\xe1\x1f")]
    ),
]

PROTOCOL = [
    Case("http2/4.1/1", lambda good: frame(0xFF, 0, 0, bytes(8)) + good.whole(), answered()),
    Case("http2/4.1/2", lambda _: frame(PING, 0x16, 0, b"flagged?"), alive),
    Case("http2/4.1/3", lambda _: frame(PING, 0, 1 << 31, b"reserved"), alive),
    Case(
        "http2/4.2/1",
        lambda good: good.head() + frame(DATA, END_STREAM, 1, good.large(1 << 14)),
        answered(),
    ),
    Case(
        "http2/4.2/2",
        lambda good: (
            good.head() + (FRAME_SIZE + 1).to_bytes(3, "big") + b"\0\0\0\0\0\1" + bytes(99)
        ),
        connection_error(TOO_LARGE),
    ),
    Case(
        "http2/4.2/3",
        lambda _: (FRAME_SIZE + 1).to_bytes(3, "big") + b"\1\4\0\0\0\1" + bytes(99),
        connection_error(TOO_LARGE),
    ),
    Case(
        "http2/4.3/1",
        lambda _: frame(HEADERS, END_HEADERS, 1, b"\x40\xff\xff\xff\xff\xff\xff"),
        connection_error(COMPRESSION),
    ),
    Case(
        "http2/4.3/2",
        lambda good: good.head(flags=0) + priority(1),
        connection_error(PROTOCOL_ERROR),
    ),
    Case(
        "http2/4.3/3",
        lambda good: good.head(flags=0) + good.head(3),
        connection_error(PROTOCOL_ERROR),
    ),
    Case(
        "http2/5.1/1", lambda _: frame(DATA, END_STREAM, 1, b"x"), connection_error(PROTOCOL_ERROR)
    ),
    Case("http2/5.1/2", lambda _: RESET, connection_error(PROTOCOL_ERROR)),
    Case("http2/5.1/3", lambda _: update(1, 100), connection_error(PROTOCOL_ERROR)),
    Case(
        "http2/5.1/4",
        lambda good: frame(CONTINUATION, END_HEADERS, 1, good.block),
        connection_error(PROTOCOL_ERROR),
    ),
    Case("http2/5.1/5", lambda good: good.whole() + good.data(), stream_error(STREAM_CLOSED)),
    Case("http2/5.1/6", lambda good: good.whole() + good.head(), stream_error(STREAM_CLOSED)),
    Case(
        "http2/5.1/7",
        lambda good: good.whole() + frame(CONTINUATION, END_HEADERS, 1, good.block),
        connection_error(PROTOCOL_ERROR, STREAM_CLOSED),
    ),
    Case("http2/5.1/8", lambda good: good.head() + RESET + good.data(), closed_before),
    Case("http2/5.1/9", lambda good: good.head() + RESET + good.head(), closed_before),
    Case(
        "http2/5.1/10",
        lambda good: good.head() + RESET + frame(CONTINUATION, END_HEADERS, 1, good.block),
        connection_error(PROTOCOL_ERROR, STREAM_CLOSED),
    ),
    Case("http2/5.1/11", lambda good: [good.whole(), WAIT, good.data()], closed_before),
    Case("http2/5.1/12", lambda good: [good.whole(), WAIT, good.head()], closed_before),
    Case(
        "http2/5.1/13",
        lambda good: [good.whole(), WAIT, frame(CONTINUATION, END_HEADERS, 1, good.block)],
        connection_error(PROTOCOL_ERROR, STREAM_CLOSED),
    ),
    Case("http2/5.1.1/1", lambda good: good.whole(2), connection_error(PROTOCOL_ERROR)),
    Case("http2/5.1.1/2", lambda good: good.whole(5) + good.whole(3) + good.whole(7), answered(7)),
    Case(
        "http2/5.1.2/1",
        lambda good: b"".join(good.head(2 * number + 1) for number in range(130)),
        stream_error(REFUSED, PROTOCOL_ERROR),
    ),
    Case(
        "http2/5.3.1/1",
        lambda good: frame(HEADERS, END_HEADERS | WITH_PRIORITY, 1, b"\0\0\0\1\xff" + good.block),
        stream_error(PROTOCOL_ERROR),
    ),
    Case("http2/5.3.1/2", lambda _: priority(1, 1), stream_error(PROTOCOL_ERROR)),
    Case("http2/5.4.1/1", lambda _: frame(PING, 0, 3, bytes(8)), connection_error(PROTOCOL_ERROR)),
    Case("http2/5.4.1/2", lambda _: frame(PING, 0, 0, bytes(7)), connection_error(TOO_LARGE)),
    Case("http2/5.5/1", lambda good: frame(0xAB, 0xFF, 0, bytes(99)) + good.whole(), answered()),
    Case(
        "http2/5.5/2",
        lambda good: good.head(flags=0) + frame(0xAB, 0, 1, bytes(8)),
        connection_error(PROTOCOL_ERROR),
    ),
    Case("http2/6.1/1", lambda _: frame(DATA, 0, 0, b"x"), connection_error(PROTOCOL_ERROR)),
    Case("http2/6.1/2", lambda good: good.whole() + good.data(), stream_error(STREAM_CLOSED)),
    Case(
        "http2/6.1/3",
        lambda good: good.head() + with_padding(END_STREAM, b"x", 0, claims=6),
        connection_error(PROTOCOL_ERROR),
    ),
    Case(
        "http2/6.2/1",
        lambda good: good.head(flags=0) + priority(1),
        connection_error(PROTOCOL_ERROR),
    ),
    Case(
        "http2/6.2/2",
        lambda good: good.head(flags=0) + good.head(3),
        connection_error(PROTOCOL_ERROR),
    ),
    Case("http2/6.2/3", lambda good: good.head(0), connection_error(PROTOCOL_ERROR)),
    Case(
        "http2/6.2/4",
        lambda good: with_padding(END_HEADERS, good.block[:9], 0, claims=200),
        connection_error(PROTOCOL_ERROR),
    ),
    Case("http2/6.3/1", lambda _: priority(0), connection_error(PROTOCOL_ERROR)),
    Case("http2/6.3/2", lambda _: frame(PRIORITY, 0, 1, bytes(4)), stream_error(TOO_LARGE)),
    Case(
        "http2/6.4/1", lambda _: frame(RST_STREAM, 0, 0, bytes(4)), connection_error(PROTOCOL_ERROR)
    ),
    Case("http2/6.4/2", lambda _: RESET, connection_error(PROTOCOL_ERROR)),
    Case(
        "http2/6.4/3",
        lambda good: good.head() + frame(RST_STREAM, 0, 1, bytes(3)),
        connection_error(TOO_LARGE),
    ),
    Case("http2/6.5/1", lambda _: frame(SETTINGS, ACK, 0, bytes(6)), connection_error(TOO_LARGE)),
    Case(
        "http2/6.5/2",
        lambda _: frame(SETTINGS, 0, 1, setting(3, 100)),
        connection_error(PROTOCOL_ERROR),
    ),
    Case("http2/6.5/3", lambda _: frame(SETTINGS, 0, 0, bytes(3)), connection_error(TOO_LARGE)),
    *(
        Case(
            f"http2/6.5.2/{number}",
            one_setting(which, value),
            connection_error(code),
        )
        for number, which, value, code in [
            (1, 2, 2, PROTOCOL_ERROR),
            (2, 4, 1 << 31, FLOW_CONTROL),
            (3, 5, (1 << 14) - 1, PROTOCOL_ERROR),
            (4, 5, 1 << 24, PROTOCOL_ERROR),
        ]
    ),
    Case("http2/6.5.2/5", lambda _: frame(SETTINGS, 0, 0, setting(0xFF, 1)), alive),
    Case("http2/6.7/3", lambda _: frame(PING, 0, 1, bytes(8)), connection_error(PROTOCOL_ERROR)),
    Case("http2/6.7/4", lambda _: frame(PING, 0, 0, bytes(6)), connection_error(TOO_LARGE)),
    Case("http2/6.8/1", lambda _: frame(GOAWAY, 0, 1, bytes(8)), connection_error(PROTOCOL_ERROR)),
    Case("http2/6.9/1", lambda _: update(0, 0), connection_error(PROTOCOL_ERROR)),
    Case("http2/6.9/2", lambda good: good.head() + update(1, 0), stream_error(PROTOCOL_ERROR)),
    Case(
        "http2/6.9/3", lambda _: frame(WINDOW_UPDATE, 0, 0, bytes(3)), connection_error(TOO_LARGE)
    ),
    Case(
        "http2/6.9.1/2",
        lambda _: update(0, (1 << 31) - 1) + update(0, (1 << 31) - 1),
        connection_error(FLOW_CONTROL),
    ),
    Case(
        "http2/6.9.1/3",
        lambda good: good.head() + update(1, (1 << 31) - 1) + update(1, (1 << 31) - 1),
        stream_error(FLOW_CONTROL),
    ),
    Case(
        "http2/6.9.2/3",
        lambda _: frame(SETTINGS, 0, 0, setting(4, 1 << 31)),
        connection_error(FLOW_CONTROL),
    ),
    Case(
        "http2/6.10/1",
        lambda good: (
            frame(HEADERS, 0, 1, good.block[:9])
            + frame(CONTINUATION, 0, 1, good.block[9:20])
            + frame(CONTINUATION, END_HEADERS, 1, good.block[20:])
            + good.data()
        ),
        answered(),
    ),
    Case(
        "http2/6.10/2",
        lambda good: (
            frame(HEADERS, 0, 1, good.block[:9])
            + frame(CONTINUATION, 0, 1, good.block[9:])
            + good.data()
        ),
        connection_error(PROTOCOL_ERROR),
    ),
    Case(
        "http2/6.10/3",
        lambda good: (
            frame(HEADERS, 0, 1, good.block[:9])
            + frame(CONTINUATION, END_HEADERS, 0, good.block[9:])
        ),
        connection_error(PROTOCOL_ERROR),
    ),
    Case(
        "http2/6.10/4",
        lambda good: good.head() + frame(CONTINUATION, END_HEADERS, 1, good.block),
        connection_error(PROTOCOL_ERROR),
    ),
    Case(
        "http2/6.10/5",
        lambda good: (
            frame(HEADERS, 0, 1, good.block[:9])
            + frame(CONTINUATION, END_HEADERS, 1, good.block[9:])
            + frame(CONTINUATION, END_HEADERS, 1, good.block[9:])
        ),
        connection_error(PROTOCOL_ERROR),
    ),
    Case(
        "http2/6.10/6",
        lambda good: good.whole() + frame(CONTINUATION, END_HEADERS, 1, good.block),
        connection_error(PROTOCOL_ERROR),
    ),
    Case(
        "http2/7/1",
        lambda _: frame(GOAWAY, 0, 0, bytes(4) + (0xFF).to_bytes(4, "big")),
        ends_well,
    ),
    Case(
        "http2/7/2",
        lambda good: good.head() + frame(RST_STREAM, 0, 1, (0xFF).to_bytes(4, "big")),
        alive,
    ),
    Case("http2/8.1.2/1", refused_fields(("X-TEST", "ok")), stream_error(PROTOCOL_ERROR)),
    Case(
        "http2/8.1.2.1/1", refused_fields((":test", "ok"), first=True), stream_error(PROTOCOL_ERROR)
    ),
    Case(
        "http2/8.1.2.1/2",
        refused_fields((":status", "200"), first=True),
        stream_error(PROTOCOL_ERROR),
    ),
    Case(
        "http2/8.1.2.1/3",
        lambda good: (
            good.head()
            + frame(DATA, 0, 1, good.body)
            + frame(HEADERS, END_HEADERS | END_STREAM, 1, field(":method", "POST"))
        ),
        stream_error(PROTOCOL_ERROR),
    ),
    Case(
        "http2/8.1.2.1/4",
        refused_fields(("x-test", "ok"), first=True),
        stream_error(PROTOCOL_ERROR),
    ),
    Case(
        "http2/8.1.2.2/1",
        refused_fields(("connection", "keep-alive")),
        stream_error(PROTOCOL_ERROR),
    ),
    Case(
        "http2/8.1.2.2/2",
        refused_fields(("te", "trailers, deflate"), without=("te",)),
        stream_error(PROTOCOL_ERROR),
    ),
    Case(
        "http2/8.1.2.3/1",
        refused_fields((":path", ""), without=(":path",), first=True),
        stream_error(PROTOCOL_ERROR),
    ),
    *(
        Case(
            f"http2/8.1.2.3/{number}", refused_fields(without=(name,)), stream_error(PROTOCOL_ERROR)
        )
        for number, name in [(2, ":method"), (3, ":scheme"), (4, ":path")]
    ),
    *(
        Case(
            f"http2/8.1.2.3/{number}",
            refused_fields(pair, first=True),
            stream_error(PROTOCOL_ERROR),
        )
        for number, pair in [
            (5, (":method", "POST")),
            (6, (":scheme", "http")),
            (7, (":path", "/v2")),
        ]
    ),
    Case("http2/8.1.2.6/1", refused_fields(("content-length", "1")), stream_error(PROTOCOL_ERROR)),
    Case(
        "http2/8.1.2.6/2",
        lambda good: (
            good.head(more=field("content-length", "1"))
            + frame(DATA, 0, 1, good.body[:1])
            + frame(DATA, END_STREAM, 1, good.body[1:])
        ),
        stream_error(PROTOCOL_ERROR),
    ),
    Case(
        "http2/8.1/1",
        lambda good: (
            good.head()
            + frame(DATA, 0, 1, good.body)
            + frame(HEADERS, END_HEADERS, 1, field("a", "b"))
        ),
        stream_error(PROTOCOL_ERROR),
    ),
    Case(
        "http2/8.2/1",
        lambda good: frame(PUSH_PROMISE, END_HEADERS, 1, bytes([0, 0, 0, 2]) + good.block),
        connection_error(PROTOCOL_ERROR),
    ),
]

HPACK = [
    Case(
        f"hpack/{number}",
        head_with(more),
        connection_error(COMPRESSION),
    )
    for number, more in [
        ("2.3.3/1", b"\xff\x01"),
        ("2.3.3/2", b"\x7f\x41\x01a"),
        ("4.2/1", b"\x20"),
        ("5.2/1", b"\x00\x01a\x82\x1f\xff"),
        ("5.2/2", b"\x00\x01a\x81\x18"),
        ("5.2/3", b"\x00\x01a\x84\xff\xff\xff\xff"),
        ("6.1/1", b"\x80"),
    ]
] + [
    Case(
        "hpack/6.3/1",
        lambda good: frame(HEADERS, END_HEADERS, 1, b"\x3f\xe1\x3f" + good.block),
        connection_error(COMPRESSION),
    )
]

CASES = [*GENERIC, *PROTOCOL, *HPACK]

SECTIONS = {
    "generic": "1:1 2:5 3.1:3 3.2:3 3.3:5 3.4:1 3.5:1 3.7:1 3.8:1 3.9:2 3.10:2 4:4 5:15",
    "http2": "3.5:2 4.1:3 4.2:3 4.3:3 5.1:13 5.1.1:2 5.1.2:1 5.3.1:2 5.4.1:2 5.5:2 6.1:3 6.2:4 6.3:2 "
    "6.4:3 6.5:3 6.5.2:5 6.5.3:2 6.7:4 6.8:1 6.9:3 6.9.1:3 6.9.2:3 6.10:6 7:2 8.1:1 8.1.2:1 8.1.2.1:4 "
    "8.1.2.2:2 8.1.2.3:7 8.1.2.6:2 8.2:1",
    "hpack": "2.3.3:2 4.2:1 5.2:3 6.1:1 6.3:1",
}
"""How many cases each section of h2spec has."""
