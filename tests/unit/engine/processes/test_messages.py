"""Inconsistent messages are refused before memory is touched, and nothing leaks."""

import fcntl
import gc
import os
import socket

import msgspec
import pytest

from ksrv import errors
from ksrv.engine.processes import messages
from ksrv.engine.processes.link import ChannelError, Frame, Link, Packed
from ksrv.engine.processes.messages import ErrorMessage, MessageType
from ksrv.request import ExecutorOutputs
from tests.support.native.links import linked

FAULT = {"kind": "HandlerFailed", "message": "m", "status": 500, "grpc_code": "INTERNAL"}
NOTHING = b"\xc0"
BLOCK = 65_536


def part(block: int, offset: int = 0, nbytes: int = 40) -> dict[str, int]:
    return {"block": block, "offset": offset, "nbytes": nbytes}


def tensor(data, shape=(10,), *, datatype="FP32", order=()) -> list:
    return ["y", datatype, shape, data, order, {}]


class Liar:
    """The other end of a link, which sends invalid messages."""

    def __init__(self) -> None:
        self.near, self.socket = Link.pair()
        self.link = Link(self.socket)
        self.keep = []

    def close(self) -> None:
        self.keep.clear()
        self.link.close()
        self.near.close()

    def own(self, nbytes: int, fill: int = 0) -> int:
        block = self.link.lease(max(nbytes, BLOCK))
        assert self.link.can_send(block)
        self.keep.append(block)
        memoryview(block)[:] = bytes([fill]) * len(block)
        return len(self.keep) - 1

    def answer(self, *tensors, text=None, **note):
        note = {"tensors": tensors, "number": 1, "model": "m", "call": 1, **note}
        text = msgspec.msgpack.encode(note) if text is None else text
        self.link.send(MessageType.ANSWER, Packed(text, self.keep), batch_number=1)

    def head(self, blocks=(), fds=(), spilled=None, cut=0):
        message = msgspec.msgpack.encode([17, 1, msgspec.Raw(NOTHING), spilled, blocks])
        socket.send_fds(self.socket, [message[: len(message) - cut]], list(fds))
        for fd in fds:
            os.close(fd)

    def lie(self, *, offset=0, nbytes=40, **changed):
        self.answer(tensor(part(self.own(40), offset, nbytes), **changed))

    def lie_about(self, block):
        self.own(40)
        self.answer(tensor(part(block)))

    def elements(self, *data, shape):
        self.answer(tensor(data, shape, datatype="BYTES"))

    def refer(self, block, offset, nbytes=65_536):
        self.own(40)
        self.elements(part(block, offset, nbytes), shape=(1,))

    def refer_twice(self):
        """Refer twice to a block whose bytes fit a message only once."""
        self.near.most_received = 65_536
        number = self.own(65_536)
        self.elements(part(number, 0, 65_536), part(number, 0, 65_536), shape=(2,))


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
    "no message": lambda s: s.socket.send(b"nonsense"),
    "zeros": lambda s: s.socket.send(bytes(32)),
    "a message cut off": lambda s: s.head(cut=1),
    "an unknown block": lambda s: s.answer(tensor(part(77))),
    "bytes that are not there": lambda s: s.answer(tensor(b"")),
    "bytes beyond the block": lambda s: s.lie(offset=2**40),
    "bytes across the block's end": lambda s: s.lie(offset=65536 - 36),
    "a negative offset": lambda s: s.lie(offset=-8),
    "a negative size": lambda s: s.lie(nbytes=-40),
    "an offset that wraps": lambda s: s.lie(offset=2**64 - 8),
    "a shape of another size": lambda s: s.lie(shape=(11,)),
    "a negative dimension": lambda s: s.lie(shape=(-10,)),
    "two negative dimensions": lambda s: s.lie(shape=(-2, -5)),
    "a dimension too large": lambda s: s.lie(nbytes=2**33, shape=(2**31,)),
    "a shape that overflows": lambda s: s.lie(shape=(2**31 - 1,) * 4),
    "an empty shape that overflows": lambda s: s.answer(tensor(b"", (0, *[2**31 - 1] * 4))),
    "an invalid datatype": lambda s: s.lie(datatype="FP31"),
    "too many dimensions": lambda s: s.lie(nbytes=4, shape=(1,) * 33),
    "an invalid order": lambda s: s.lie(shape=(2, 5), order=(1, 1)),
    "an order out of range": lambda s: s.lie(shape=(2, 5), order=(0, 200)),
    "an order of other axes": lambda s: s.lie(shape=(2, 5), order=(1, 0, 2)),
    "an unaligned array": lambda s: s.lie(offset=1),
    "an array of elements": lambda s: s.answer(tensor([b"x" * 4] * 10)),
    "elements in an array": lambda s: s.answer(tensor(bytes(40), datatype="BYTES")),
    "elements in a block": lambda s: s.lie(datatype="BYTES"),
    "other elements than the shape's": lambda s: s.elements(b"a", b"b", shape=(3,)),
    "an element that is not bytes": lambda s: s.elements("a", shape=(1,)),
    "an element in an unknown block": lambda s: s.refer(77, 0),
    "an element beyond its block": lambda s: s.refer(0, 1),
    "an element whose end wraps": lambda s: s.refer(0, 2**64 - 8),
    "a short element in a block": lambda s: s.refer(0, 0, 8),
    "elements of more bytes than allowed": lambda s: s.refer_twice(),
    "a number instead of tensors": lambda s: s.answer(7),
    "more tensors than anybody has": lambda s: s.answer(*[tensor(b"", (0,))] * 65_537),
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
    "a name that is not text": lambda s: s.answer([1, "FP32", [0], b"", [], {}]),
    "a name that is not UTF-8": lambda s: s.answer(
        text=b"\x81\xa7tensors\x91\x96\xa1\xff\xa4FP32\x91\x00\xc4\x00\x90\x80"
    ),
    "no note": lambda s: s.answer(text=NOTHING),
    "a deep note": lambda s: s.answer(text=b"\x91" * 50_000 + b"\x01"),
    "a slot of no memory": lambda s: s.head([3]),
    "more blocks than a message has": lambda s: s.head([3] * 129),
    "block -1": lambda s: s.lie_about(-1),
    "descriptors nobody asked for": lambda s: s.head(fds=[pipe(), pipe(), pipe()]),
    "a payload in no block": lambda s: s.head(spilled=part(7)),
    "a payload without end": lambda s: s.head(spilled=part(7, 0, 2**62)),
}

ANNOUNCED = {
    "blocks without descriptors": lambda s: s.head([-4096]),
    "a descriptor that can shrink": lambda s: s.head([-4096], [memfd(4096, seals=0)]),
    "a descriptor that is a pipe": lambda s: s.head([-4096], [pipe()]),
    "a block shorter than announced": lambda s: s.head([-(2**20)], [memfd(4096)]),
    "a block of all bytes": lambda s: s.head([-(2**63)], [memfd(4096)]),
    "a second block that can shrink": lambda s: s.head(
        [-4096, -4096], [memfd(4096), memfd(4096, seals=0)]
    ),
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


READERS = {"answer": messages.unpack_answer, "call": messages.unpack_call}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("lie", LIES)
def test_inconsistent_message_is_refused(liar, lie, reader):
    if reader == "call" and lie.startswith(("a failure", "headers")):
        pytest.skip("a call speaks of no requests")
    LIES[lie](liar)
    with pytest.raises(ChannelError):
        READERS[reader](liar.near.receive())


@pytest.mark.parametrize("reader", READERS)
def test_tensors_above_the_limit_of_a_message_are_refused(liar, reader):
    liar.near.most_received = 7999
    liar.answer(*[tensor(part(liar.own(4000), 0, 4000), (1000,))] * 2)
    with pytest.raises(ChannelError, match="more than 7999 bytes"):
        READERS[reader](liar.near.receive())


def test_payload_above_the_limit_of_a_message_is_refused(liar):
    liar.near.most_received = 99_999
    liar.answer(text=msgspec.msgpack.encode("x" * 100_000))
    with pytest.raises(ChannelError, match="99999 are allowed"):
        liar.near.receive()


@pytest.mark.parametrize("lie", ANNOUNCED)
def test_unmappable_block_is_refused_with_its_message(liar, lie):
    ANNOUNCED[lie](liar)
    with pytest.raises(ChannelError):
        liar.near.receive()


def test_too_long_message_is_refused(liar):
    liar.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    liar.socket.send(bytes(161 * 1024))
    with pytest.raises(ChannelError, match="longer than the channel allows"):
        liar.near.receive()


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
    return Frame(MessageType.FAILED, 1, messages.dump(note).payload)


@pytest.mark.parametrize(("said", "heard"), [(-1, 0), (2**63 - 1, 2**31 - 1), (None, None)])
def test_retry_seconds_are_valid_for_a_header(said, heard):
    note = ErrorMessage("Overloaded", "m", 503, "RESOURCE_EXHAUSTED", {}, said)
    assert messages.to_error(note).retry_after == heard


def received(link: Link) -> list[int]:
    """Return the sizes of the messages that have arrived."""
    sizes = []
    while True:
        try:
            sizes.append(len(link.receive(0).payload))
        except TimeoutError:
            return sizes


@pytest.mark.parametrize("size", [50_000, 100_000])
def test_messages_wait_until_the_socket_has_room(size):
    packed = Packed(msgspec.msgpack.encode(bytes(size)))
    with linked("keep") as (near, far):
        sent = 0
        while near.waiting < 2:
            near.send(MessageType.LOG, packed)
            sent += 1
        assert near.kept_bytes == 2 * len(packed.payload)
        found = received(far)
        near.flush()
        found += received(far)
        assert found == [len(packed.payload)] * sent
        assert near.waiting == near.kept_bytes == 0


@pytest.mark.parametrize("value", ["\ud800", 2**64])
def test_value_without_a_form_fails_the_answer(value):
    with pytest.raises(errors.HandlerFailed, match="cannot exchange a value"):
        messages.pack_answer(ExecutorOutputs([], parameters={0: {"p": value}}), Link.pair()[0])
