"""The memory of an answer while it is sent."""

import grpc
import pytest

from ksrv.protocol.protobuf import INFERENCE
from ksrv.server.grpc.native_server import NativeGrpcServer
from tests.support.wire.grpc_calls import running


def test_answer_keeps_its_bytes_in_place_until_they_are_sent(engine, monkeypatch):
    message = bytearray(b"x" * 1_000_000)

    def answer(_, call):
        call.answer(message)
        with pytest.raises(BufferError):
            message.extend(b"more")

    monkeypatch.setattr(NativeGrpcServer, "_ready", answer)
    with running(engine) as address, grpc.insecure_channel(address) as channel:
        assert channel.unary_unary(f"/{INFERENCE}/ServerLive")(b"", timeout=60) == message
