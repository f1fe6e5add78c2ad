"""A server that stops does not wait for clients of gRPC that say nothing."""

import signal

import pytest

from ksrv.testing import Server
from tests.support.models import write_all
from tests.support.wire.http2_wire import Wire

LIVE = "/inference.GRPCInferenceService/ServerLive"
INFER = "/inference.GRPCInferenceService/ModelInfer"
PATIENT = {"head_timeout": 300, "stop_timeout": 300, "transfer_grace": 300}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return write_all(tmp_path_factory.mktemp("models"))


def test_stop_does_not_wait_for_the_first_look_at_a_young_connection(models):
    with (
        Server(models, **PATIENT) as server,
        Wire(server.grpc) as silent,
        Wire(server.grpc) as idle,
    ):
        assert b"grpc-status: 0" in idle.until_ended(idle.call(LIVE, message=b""))
        server.process.send_signal(signal.SIGTERM)
        for client in (idle, silent):
            client.until_closed()
            assert client.goodbye == 0
        assert server.process.wait(60) == 0


@pytest.mark.parametrize("sent", [0, 7])
def test_stop_does_not_wait_for_calls_whose_message_stops(models, sent):
    with Server(models, **PATIENT) as server, Wire(server.grpc) as client:
        call = client.call(INFER)
        client.send(call, bytes([0, 0, 0, 0, 90, 1, 1])[:sent])
        assert b"grpc-status: 0" in client.until_ended(client.call(LIVE, message=b""))
        server.process.send_signal(signal.SIGTERM)
        client.until_closed()
        assert b"grpc-status: 14" in client.ended[call]
        assert server.process.wait(60) == 0
