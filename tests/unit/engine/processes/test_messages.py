"""Inconsistent messages are refused before memory is touched, and nothing leaks."""

import fcntl
import gc
import json
import os
import struct
from types import SimpleNamespace

import numpy as np
import pytest

from ksrv import errors
from ksrv._native.process.channel import Channel, ChannelClosed, ChannelError, Link
from ksrv._native.tensor import datatype
from ksrv.engine.processes import messages
from ksrv.engine.processes.messages import ErrorMessage, MessageType

FP32 = datatype.NAMES.index("FP32")
BYTES = datatype.NAMES.index("BYTES")
REFERRED_TO = 1 << 63
FAULT = {"kind": "HandlerFailed", "message": "m", "status": 500, "grpc_code": "INTERNAL"}


class Liar:
    """The other end of a link, which sends invalid messages."""

    def __init__(self) -> None:
        near, far = Channel.pair()
        self.link = Link(Channel(far))
        self.near = Link(near)
        self.keep = []

    def close(self) -> None:
        self.keep.clear()
        self.link.close()
        self.near.close()

    def own(self, nbytes: int, fill: int = 0) -> int:
        block = self.link.exported.lease(nbytes)
        self.keep.append(block)
        memoryview(block)[:] = bytes([fill]) * len(block)
        return self.link.exported.number_of(block)

    def sizes(self, *values: int) -> int:
        block = self.link.exported.lease(64)
        self.keep.append(block)
        memoryview(block)[: 8 * len(values)] = struct.pack(f"<{len(values)}Q", *values)
        return self.link.exported.number_of(block)

    def answer(self, records=b"", names=(), count=None, text=None, **note):
        note = {"names": list(names), "number": 1, "model": "m", "call": 1, **note}
        text = json.dumps(note).encode() if text is None else text
        count = len(names) if count is None and records else count or 0
        payload = struct.pack("<III", count, len(records), 0) + records + text
        self.link.send(MessageType.ANSWER, payload, batch_number=1, blocks=self.keep)

    def head(
        self,
        kind=17,
        flags=0,
        announced=(),
        returned=(),
        fds=(),
        payload=b"",
        length=None,
        cut=0,
        lent=0,
    ):
        length = len(payload) if length is None else length
        message = struct.pack(
            "<4sBBHHHxxxxQQ", b"ksv1", kind, flags, len(announced), len(returned), 0, 1, length
        )
        for number, size in announced:
            message += struct.pack("<QQQ", number, size, lent)
        message += struct.pack(f"<{len(returned)}Q", *returned) + payload
        self.link.channel.send(message[: len(message) - cut], list(fds))
        for fd in fds:
            os.close(fd)

    def tensor(self, nbytes=40, shape=(10,), **record):
        number = self.own(40)
        self.answer(records(number=number, nbytes=nbytes, shape=shape, **record), names=["y"])

    def elements(self, sizes, nbytes, shape, count):
        number = self.sizes(*sizes)
        record = records(code=BYTES, elements=count, number=number, nbytes=nbytes, shape=shape)
        self.answer(record, names=["y"])

    def refer(self, size, number, offset):
        self.elements((REFERRED_TO + size, number, offset), 24, (1,), 1)

    def refer_twice(self):
        """Refer twice to a block whose bytes fit a message only once."""
        self.near.imported.most_bytes = 65_536 + 48
        self.elements((REFERRED_TO + 65_536,) * 2 + (1, 0) * 2, 48, (2,), 2)


def records(code=FP32, elements=0, number=0, offset=0, nbytes=0, shape=(), order=()):
    head = struct.pack(
        "<BBBxxxxxQQQQ", code, len(shape), bool(order), elements, number, offset, nbytes
    )
    return head + struct.pack(f"<{len(shape)}q", *shape) + bytes(order)


def memfd(size: int, *, seals: int = fcntl.F_SEAL_SHRINK) -> int:
    fd = os.memfd_create("x", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def pipe() -> int:
    reader, writer = os.pipe()
    os.close(writer)
    return reader


LIES = {
    "no head": lambda s: s.link.channel.send(b"nonsense"),
    "a head of zeros": lambda s: s.link.channel.send(bytes(32)),
    "an unknown block": lambda s: s.answer(records(number=77, nbytes=40, shape=(10,)), ["y"]),
    "bytes without a block": lambda s: s.answer(records(nbytes=40, shape=(10,)), ["y"]),
    "bytes beyond the block": lambda s: s.tensor(offset=2**40),
    "bytes across the block's end": lambda s: s.tensor(offset=65536 - 36),
    "an offset that wraps": lambda s: s.tensor(offset=2**64 - 8),
    "a shape of another size": lambda s: s.tensor(shape=(11,)),
    "a negative dimension": lambda s: s.tensor(shape=(-10,)),
    "a dimension too large": lambda s: s.tensor(nbytes=2**33, shape=(2**31,)),
    "a shape that overflows": lambda s: s.tensor(shape=(2**31 - 1,) * 4),
    "an invalid datatype": lambda s: s.tensor(code=200),
    "too many dimensions": lambda s: s.tensor(nbytes=4, shape=(1,) * 33),
    "an invalid order": lambda s: s.tensor(shape=(2, 5), order=(1, 1)),
    "an order out of range": lambda s: s.tensor(shape=(2, 5), order=(0, 200)),
    "an unaligned array": lambda s: s.tensor(offset=1),
    "elements without bytes": lambda s: s.answer(
        records(code=BYTES, elements=4, shape=(4,)), ["y"]
    ),
    "other elements than the shape's": lambda s: s.elements((1, 1), 18, (3,), 2),
    "an element beyond its bytes": lambda s: s.elements((8, 2**63), 24, (2,), 2),
    "sizes that wrap": lambda s: s.elements((2**64 - 1, 9), 24, (2,), 2),
    "bytes after the elements": lambda s: s.elements((1, 1), 24, (2,), 2),
    "more elements than bytes": lambda s: s.elements((), 40, (2**20, 2**20), 2**40),
    "a reference to an unknown block": lambda s: s.refer(65_536, 77, 0),
    "a reference beyond its block": lambda s: s.refer(65_536, 1, 1),
    "a reference that wraps": lambda s: s.refer(65_536, 1, 2**64 - 8),
    "a reference to next to nothing": lambda s: s.refer(8, 1, 0),
    "a reference cut off": lambda s: s.elements((REFERRED_TO + 65_536, 1), 16, (1,), 1),
    "references to more than allowed": lambda s: s.refer_twice(),
    "elements beyond the block": lambda s: s.elements((1,), 2**30, (1,), 1),
    "more names than tensors": lambda s: s.answer(names=["y"]),
    "more tensors than names": lambda s: s.answer(records(shape=(0,)), count=1),
    "records that end too soon": lambda s: s.answer(records(shape=(0,))[:-1], ["y"]),
    "records without an end": lambda s: s.answer(text=b"", count=60_000),
    "more tensors than anybody has": lambda s: s.answer(text=b"", count=2**32 - 1),
    "a failure of a request that is not there": lambda s: s.answer(failures={5: FAULT}),
    "a failure of request -1": lambda s: s.answer(failures={-1: FAULT}),
    "a failure that is a success": lambda s: s.answer(failures={0: dict(FAULT, status=200)}),
    "a failure whose gRPC code is that of a success": lambda s: s.answer(
        failures={0: dict(FAULT, grpc_code="OK")}
    ),
    "a failure with an invalid gRPC code": lambda s: s.answer(
        failures={0: dict(FAULT, grpc_code="NOPE")}
    ),
    "headers of a request that is not there": lambda s: s.answer(headers={1: {"a": "b"}}),
    "names that are no strings": lambda s: s.answer(text=b'{"names": [1]}'),
    "no JSON": lambda s: s.answer(text=b"{"),
    "deep JSON": lambda s: s.answer(text=b"[" * 50_000),
    "no records at all": lambda s: s.head(payload=b"1234"),
    "a block given back that never was": lambda s: s.head(returned=[999]),
    "lists cut off": lambda s: s.head(returned=[1, 2], cut=4),
    "descriptors nobody asked for": lambda s: s.head(fds=[pipe(), pipe(), pipe()]),
    "a payload in no block": lambda s: s.head(flags=1, payload=struct.pack("<QQ", 7, 0), length=10),
    "a payload of another length": lambda s: s.head(length=5),
    "a payload without end": lambda s: s.head(
        flags=1, payload=struct.pack("<QQ", 7, 0), length=2**62
    ),
}

ANNOUNCED = {
    "blocks announced without descriptors": lambda s: s.head(announced=[(1, 4096)]),
    "a descriptor that can shrink": lambda s: s.head(
        announced=[(1, 4096)], fds=[memfd(4096, seals=0)]
    ),
    "a descriptor that is a pipe": lambda s: s.head(announced=[(1, 4096)], fds=[pipe()]),
    "a block shorter than announced": lambda s: s.head(announced=[(1, 2**20)], fds=[memfd(4096)]),
    "a block of no bytes": lambda s: s.head(announced=[(1, 0)], fds=[memfd(4096)]),
    "a block of all bytes": lambda s: s.head(announced=[(1, 2**64 - 1)], fds=[memfd(4096)]),
    "block 0": lambda s: s.head(announced=[(0, 4096)], fds=[memfd(4096)]),
    "a block announced twice": lambda s: s.head(
        announced=[(1, 4096), (1, 4096)], fds=[memfd(4096), memfd(4096)]
    ),
    "a block that is lent": lambda s: s.head(announced=[(1, 4096)], fds=[memfd(4096)], lent=1),
}


def descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def liar():
    before = descriptors()
    other = Liar()
    yield other
    other.close()
    assert descriptors() <= before


READERS = {
    "answer": lambda frame, imported: messages.unpack_answer(frame, imported, 1),
    "result": messages.unpack_result,
    "call": messages.unpack_call,
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("lie", LIES)
def test_inconsistent_message_is_refused(liar, lie, reader):
    if reader == "call" and lie.startswith(("a failure", "headers")):
        pytest.skip("a call speaks of no requests")
    LIES[lie](liar)
    with pytest.raises(ChannelError):
        READERS[reader](liar.near.receive(), liar.near.imported)


@pytest.mark.parametrize("reader", READERS)
def test_tensors_above_the_limit_of_a_message_are_refused(liar, reader):
    liar.near.imported.most_bytes = 7999
    record = records(number=liar.own(4000), nbytes=4000, shape=(1000,))
    liar.answer(record * 2, names=["x", "y"])
    with pytest.raises(ChannelError, match="more than 7999 bytes"):
        READERS[reader](liar.near.receive(), liar.near.imported)


@pytest.mark.parametrize("lie", ANNOUNCED)
def test_unmappable_block_is_refused_with_its_message(liar, lie):
    ANNOUNCED[lie](liar)
    with pytest.raises(ChannelError):
        liar.near.receive()


def test_valid_message_is_accepted(liar):
    number = liar.own(40, 1)
    liar.answer(records(number=number, nbytes=40, shape=(5, 2), order=(1, 0)), names=["y"])
    answer = messages.unpack_answer(liar.near.receive(), liar.near.imported, 1)
    assert answer.tensors[0].shape == (2, 5)
    assert (np.ascontiguousarray(answer.tensors[0].data).view("u4") == 0x01010101).all()


def test_elements_may_be_references(liar):
    number = liar.sizes(REFERRED_TO + 65_536, 3, 1, 0, int.from_bytes(b"abc", "little"))
    record = records(code=BYTES, elements=2, number=number, nbytes=35, shape=(2,))
    liar.near.imported.most_bytes = 65_536 + 35
    liar.answer(record, names=["y"])
    (read,) = messages.unpack_answer(liar.near.receive(), liar.near.imported, 1).tensors
    assert [len(element) for element in read.data] == [65_536, 3]
    assert bytes(read.data[1]) == b"abc"


def test_too_long_message_is_refused(liar):
    with pytest.raises(ValueError, match="at most"):
        liar.link.channel.send(bytes(200 * 1024))


def test_closed_peer_raises_channel_closed(liar):
    liar.link.close()
    with pytest.raises(ChannelClosed):
        liar.near.receive()
    with pytest.raises(ChannelClosed):
        liar.near.send(MessageType.RUN, b"")


def test_message_with_blocks_to_a_closed_end_raises(liar):
    block = liar.near.exported.lease(40)
    liar.near.close()
    with pytest.raises(ChannelClosed, match="this end is closed"):
        liar.near.send(MessageType.RUN, b"", blocks=[block])


def errors_of(kind):
    return [kind, *(one for child in kind.__subclasses__() for one in errors_of(child))]


@pytest.mark.parametrize(
    "kind", [one for one in errors_of(errors.KsrvError) if one.__module__ == errors.__name__]
)
def test_errors_are_unchanged_by_the_channel(kind):
    sent = kind("why")
    sent.retry_after = 7
    note = messages.load(ErrorMessage, frame_of(messages.to_message(sent)))
    got = messages.to_error(note)
    assert type(got) is kind
    assert (got.message, got.http_status, got.grpc_code, got.retry_after) == (
        "why",
        sent.http_status,
        sent.grpc_code,
        7,
    )


def frame_of(note):
    packed = messages.dump(note)
    return SimpleNamespace(payload=packed.payload, lenient=packed.lenient)


@pytest.mark.parametrize(("said", "heard"), [(-1, 0), (2**63 - 1, 2**31 - 1), (None, None)])
def test_retry_seconds_are_valid_for_a_header(said, heard):
    note = ErrorMessage("Overloaded", "m", 503, "RESOURCE_EXHAUSTED", {}, said)
    assert messages.to_error(note).retry_after == heard


def test_a_shutdown_wakes_a_receiver_after_what_was_sent_before(liar):
    liar.link.send(MessageType.LOG, b"last words")
    liar.near.channel.shutdown()
    assert liar.near.receive().payload == b"last words"
    with pytest.raises(ChannelClosed):
        liar.near.receive()


def test_wait_ends_at_its_deadline(liar):
    with pytest.raises(TimeoutError):
        liar.near.receive(0)
    liar.link.send(MessageType.LOG, b"here")
    assert liar.near.receive(0).payload == b"here"


@pytest.mark.parametrize("size", [50_000, 100_000])
def test_full_socket_raises_and_the_message_is_sent_later(liar, size):
    def fill():
        for _ in range(10_000):
            liar.link.send(MessageType.LOG, bytes(size), wait=False)

    for _ in range(3):
        with pytest.raises(BlockingIOError):
            fill()
        received = 0
        while True:
            try:
                assert liar.near.receive(0).payload == bytes(size)
                received += 1
            except TimeoutError:
                break
        assert received
