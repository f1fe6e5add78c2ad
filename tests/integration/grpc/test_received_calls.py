"""How the native server reads a call's fields and the bytes of its messages, step by step."""

import gzip
import zlib

import pytest

from ksrv.limits import Limits
from ksrv.protocol.protobuf import INFERENCE
from ksrv.server.grpc.limits import SMALL
from tests.support.engine.held_engine import HeldEngine
from tests.support.wire.grpc_calls import row_request, running
from tests.support.wire.http2_wire import (
    DATA,
    END_HEADERS,
    END_STREAM,
    GRPC_HEAD,
    HEADERS,
    Wire,
    field,
    frame,
)

INFER, STREAM, LIVE = (
    f"/{INFERENCE}/{name}" for name in ("ModelInfer", "ModelStreamInfer", "ServerLive")
)
BODY, HEAD = 100_000, 400
NAMES = GRPC_HEAD | {":path": LIVE}
ROOM = HEAD - sum(len(name) + len(value) + 32 for name, value in [*NAMES.items(), ("pad", "")])
NO_MESSAGE = b"the call requires exactly one request message"
SECOND = NO_MESSAGE + b", and further bytes came"
PARTIAL = b"the call ended within a message"


@pytest.fixture(scope="module")
def address(models):
    engine = HeldEngine(models)
    engine.start()
    with running(engine, limits=Limits(body=BODY, head=HEAD)) as found:
        yield found
    engine.close(5)


def head(stream, changes, flags=0):
    names = {name: value for name, value in {**NAMES, **changes}.items() if value is not None}
    block = b"".join(
        field(name, value)
        for name, values in names.items()
        for value in (values if isinstance(values, list) else [values])
    )
    return frame(HEADERS, END_HEADERS | flags, stream, block)


def message(content, length=None, *, flag=0):
    return bytes([flag]) + (len(content) if length is None else length).to_bytes(4, "big") + content


ROW = row_request("add").SerializeToString()
MEMBERS = gzip.compress(ROW[:9], mtime=0) + gzip.compress(ROW[9:], mtime=0)
LARGE = row_request("add", parameters={"p": "x" * 90_000}).SerializeToString()


@pytest.mark.parametrize(
    ("changes", "status", "told"),
    [
        ({}, 3, NO_MESSAGE),
        ({"content-type": "application/grpc+proto"}, 3, NO_MESSAGE),
        ({"content-type": "application/grpc;x"}, 3, NO_MESSAGE),
        ({"content-type": "application/grpc-web"}, None, b":status: 415"),
        ({"content-type": "application/grp"}, None, b":status: 415"),
        ({"content-type": "text/plain"}, None, b":status: 415"),
        ({"content-type": ["application/grpc", "text/plain"]}, None, b":status: 415"),
        ({"content-type": None}, None, b":status: 415"),
        ({":method": "GET"}, None, b":status: 405"),
        ({":method": "HEAD"}, None, b":status: 405"),
        ({":path": LIVE + "x"}, 12, b"Method not found!"),
        ({"grpc-timeout": "soon"}, 13, b"the call's grpc-timeout is malformed"),
        ({"grpc-timeout": "1H"}, 3, NO_MESSAGE),
        ({"pad": "x" * ROOM}, 3, NO_MESSAGE),
        ({"pad": "x" * (ROOM + 1)}, 8, b"above the limit --limits-head (400 bytes)"),
        ({":path": STREAM}, 0, b""),
    ],
)
def test_invalid_heads_get_a_status(address, changes, status, told):
    with Wire(address) as wire:
        wire.socket.sendall(head(1, changes, END_STREAM))
        fields = wire.until_ended(1)
        assert told in fields
        assert (b"grpc-status" in fields) == (status is not None)
        assert status is None or b"grpc-status: %d\n" % status in fields + b"\n"
        # A body in the answer to HEAD is a protocol error (RFC 9110 9.3.2).
        assert not wire.data or changes.get(":method") != "HEAD"


@pytest.mark.parametrize(
    ("path", "encoding", "data", "status", "told"),
    [
        (LIVE, None, message(b""), 0, b""),
        (LIVE, None, message(b"", flag=2), 13, b"begins with the byte 2, not with 0 or 1"),
        (LIVE, None, message(b"x", flag=1), 13, b"the call has no grpc-encoding"),
        (LIVE, "identity", message(b"x", flag=1), 13, b"the call has no grpc-encoding"),
        (LIVE, "gzip", message(gzip.compress(b"", mtime=0), flag=1), 0, b""),
        (LIVE, "deflate", message(zlib.compress(b""), flag=1), 0, b""),
        (LIVE, "gzip", message(b""), 0, b""),
        (LIVE, "snappy", message(b"x", flag=1), 12, b"grpc-accept-encoding says what it reads"),
        (LIVE, "snappy", message(b""), 0, b""),
        (LIVE, None, message(b"", SMALL), 3, PARTIAL),
        (LIVE, None, message(b"", SMALL + 1), 8, b"the limit of this method"),
        (LIVE, None, message(b"")[:4], 3, PARTIAL),
        (LIVE, None, message(b"")[:1], 3, PARTIAL),
        (LIVE, None, message(b"") + b"\0", 12, SECOND),
        (LIVE, None, message(b"") * 2, 12, SECOND),
        (INFER, None, message(ROW), 0, b""),
        (INFER, None, message(ROW)[:-1], 3, PARTIAL),
        (INFER, None, message(ROW) + b"\0", 12, SECOND),
        (INFER, None, message(b""), 5, b""),
        (INFER, None, message(LARGE), 0, b""),
        (INFER, "gzip", message(gzip.compress(ROW, mtime=0), flag=1), 0, b""),
        (INFER, "gzip", message(MEMBERS, flag=1), 0, b""),
        (INFER, "gzip", message(MEMBERS + b"x", flag=1), 3, b"after the end of its stream"),
        (INFER, None, message(b"", BODY), 3, PARTIAL),
        (
            INFER,
            None,
            message(b"", BODY + 1),
            8,
            b"100001 bytes, above the limit --limits-body (100000 bytes)",
        ),
        (INFER, None, message(b"", 2**32 - 1), 8, b"the message has 4294967295 bytes"),
        (STREAM, None, message(ROW) * 3, 0, b""),
        (STREAM, None, message(LARGE) * 3, 0, b""),
        (STREAM, None, message(ROW) + message(ROW)[:-1], 3, PARTIAL),
        (STREAM, None, message(ROW) + b"\0", 3, PARTIAL),
        (STREAM, None, message(b"", BODY + 1), 8, b"--limits-body"),
    ],
)
@pytest.mark.parametrize("pieces", [1, 20])
def test_messages_are_received_whole_and_in_pieces(
    address, path, encoding, data, status, told, pieces
):
    size = -(-len(data) // pieces)
    with Wire(address) as wire:
        stream = wire.call(path, encoding=encoding)
        for at in range(0, len(data), size):
            wire.send(stream, data[at : at + size], last=at + size >= len(data))
        fields = wire.until_ended(stream)
        assert told in fields
        assert b"grpc-status: %d\n" % status in fields + b"\n"


def test_a_second_message_is_refused_whenever_it_comes(address):
    with Wire(address) as wire:
        stream = wire.call(INFER)
        wire.send(stream, message(row_request("slow").SerializeToString()))
        wire.send(stream, b"\0")
        assert SECOND in wire.until_ended(stream)


def test_client_trailers_are_ignored(address):
    with Wire(address) as wire:
        wire.socket.sendall(head(1, {}) + frame(DATA, 0, 1, message(b"")))
        trailers = field("grpc-timeout", "soon") + field("pad", "x" * 100) * 9
        wire.socket.sendall(frame(HEADERS, END_HEADERS | END_STREAM, 1, trailers))
        assert b"grpc-status: 0" in wire.until_ended(1)


def test_handler_sees_the_metadata_without_grpc_fields(address):
    row = message(row_request("seen").SerializeToString())
    with Wire(address) as wire:
        own = {"te": None, ":path": INFER, "grpc-x": "no", "mine": "early"}
        wire.socket.sendall(head(1, own) + frame(DATA, 0, 1, row))
        wire.socket.sendall(frame(HEADERS, END_HEADERS | END_STREAM, 1, field("theirs", "late")))
        assert b"grpc-status: 0" in wire.until_ended(1)
        seen = b"".join(wire.data)
        assert b"'mine': 'early'" in seen
        assert b"grpc-" not in seen
        assert b"late" not in seen
