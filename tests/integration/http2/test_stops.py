"""A server that stops does not wait for clients of gRPC that say nothing."""

import signal

import h2.errors
import pytest

from ksrv.testing import Server
from tests.support.models import write_all
from tests.support.wire.http2_client import Http2Client

FIELDS = [("content-type", "application/grpc"), ("te", "trailers")]
PATIENT = {"head_timeout": 300, "stop_timeout": 300, "transfer_grace": 300}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return write_all(tmp_path_factory.mktemp("models"))


def test_stop_does_not_wait_for_the_first_look_at_a_young_connection(models):
    with (
        Server(models, **PATIENT) as server,
        Http2Client(server.grpc) as silent,
        Http2Client(server.grpc) as idle,
    ):
        stream = idle.begin("POST", "/inference.GRPCInferenceService/ServerLive", FIELDS)
        idle.send(stream, bytes(5), end=True)
        assert idle.wait(stream).status == 200
        server.process.send_signal(signal.SIGTERM)
        for client in (idle, silent):
            client.until_over()
            assert client.goodbye.error_code == h2.errors.ErrorCodes.NO_ERROR
        assert server.process.wait(60) == 0


@pytest.mark.parametrize("sent", [0, 7])
def test_stop_does_not_wait_for_calls_whose_message_stops(models, sent):
    with Server(models, **PATIENT) as server, Http2Client(server.grpc) as client:
        call = client.begin("POST", "/inference.GRPCInferenceService/ModelInfer", FIELDS)
        client.send(call, bytes([0, 0, 0, 0, 90, 1, 1])[:sent])
        live = client.begin("POST", "/inference.GRPCInferenceService/ServerLive", FIELDS)
        client.send(live, bytes(5), end=True)
        assert client.wait(live).status == 200
        server.process.send_signal(signal.SIGTERM)
        assert client.wait(call).fields["grpc-status"] == "14"
        client.until_over()
        assert server.process.wait(60) == 0
