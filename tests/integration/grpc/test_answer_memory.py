"""The memory of an answer while it is built and sent."""

import grpc
import pytest

from ksrv.protocol.protobuf import INFERENCE
from ksrv.server.grpc.native_server import NativeGrpcServer
from tests.support.wire.grpc_calls import running

PATH = f"/{INFERENCE}/ServerLive"
PARTS, TRIES = 20_000, 200
"""Each try allocates 16 bytes per part: 64 MB in total if nothing is freed."""
MOST_GROWTH = 20 << 20


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def answer_of(engine, monkeypatch, answer):
    """Return the result of a call that `answer` answers."""
    monkeypatch.setattr(NativeGrpcServer, "_ready", lambda _, call: answer(call))
    with running(engine) as address, grpc.insecure_channel(address) as channel:
        return channel.unary_unary(PATH)(b"", timeout=60)


def test_invalid_part_leaks_no_memory(engine, monkeypatch):
    parts = [b"x"] * PARTS + [memoryview(b"abcd")[::2]]
    grown = []

    def answer(call):
        for _ in range(TRIES):
            with pytest.raises(BufferError):
                call.answer(parts)
            grown.append(resident())
        call.answer(b"")

    assert answer_of(engine, monkeypatch, answer) == b""
    assert grown[-1] - grown[len(grown) // 10] < MOST_GROWTH


def test_answer_keeps_its_bytes_in_place_until_they_are_sent(engine, monkeypatch):
    message = bytearray(b"x" * 1_000_000)

    def answer(call):
        call.answer(message)
        with pytest.raises(BufferError):
            message.extend(b"more")

    assert answer_of(engine, monkeypatch, answer) == message
