"""What becomes of a call of Ray's gRPC ingress on its way to the replica's own server."""

import asyncio
from types import SimpleNamespace

import grpc
import pytest

from ksrv.protocol import protobuf
from ksrv.ray.grpc_forwarding import CallFailed, GrpcForwarder, add_servicer, with_grpc_calls
from ksrv.testing import Server
from tests.support.models import ECHO, VECTOR, write_model

LABELLED = """
from ksrv import BaseHandler


class Labelled(BaseHandler):
    def inference(self, x, batch):
        for row in range(len(x)):
            batch.set_header(row, "x-label", "seven")
        return {"y": x}
"""


ID = "x-request-id"


class Context:
    """Ray's gRPC context, as far as a forwarder uses it."""

    def __init__(self, *metadata):
        self.code = self.details = self.trailers = None
        self._metadata = [
            ("user-agent", "a client"),
            ("content-type", "application/grpc"),
            ("grpc-accept-encoding", "gzip"),
            *metadata,
        ]

    def invocation_metadata(self):
        return self._metadata

    def peer(self):
        return "ipv4:127.0.0.1:5"

    def set_code(self, code):
        self.code = code

    def set_details(self, details):
        self.details = details

    def set_trailing_metadata(self, trailers):
        self.trailers = trailers


@pytest.fixture(scope="module", params=["native", "grpcio"])
def server(request, tmp_path_factory):
    models = tmp_path_factory.mktemp("models")
    write_model(models, "echo", ECHO, VECTOR)
    write_model(models, "labelled", LABELLED, VECTOR)
    write_model(models, "busy", ECHO, f"{VECTOR}rate_limit: 0.001\n")
    with Server(models, grpc_server=request.param) as started:
        yield SimpleNamespace(grpc=started.grpc, tls_context=lambda: None)


def infer(model="echo"):
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4]}
    request = protobuf.ModelInferRequest(model_name=model, id="7", inputs=[tensor])
    request.raw_input_contents.append(bytes(16))
    return request.SerializeToString()


def unary(server, name, message, context):
    async def run():
        forwarder = GrpcForwarder(server)
        try:
            return await forwarder.unary(name, message, context)
        finally:
            if forwarder._channel is not None:
                await forwarder._channel.close()

    return asyncio.run(run()).SerializeToString()


def test_a_call_and_its_answer(server):
    answer = protobuf.ModelInferResponse.FromString(unary(server, "ModelInfer", infer(), Context()))
    assert (answer.id, answer.raw_output_contents[0]) == ("7", bytes(16))


def test_a_refusal_keeps_its_status(server):
    context = Context()
    assert unary(server, "ModelInfer", infer("nope"), context) == b""
    assert context.code == grpc.StatusCode.NOT_FOUND
    assert "nope" in context.details


def test_trailers_go_on(server):
    refused, answered = Context(), Context()
    for context in (Context(), refused):  # the rate of the model is one call in a thousand seconds
        unary(server, "ModelInfer", infer("busy"), context)
    unary(server, "ModelInfer", infer("labelled"), answered)
    trailers = dict(refused.trailers)
    assert trailers["retry-after"] == "1000"
    assert b"google.rpc.RetryInfo" in trailers["grpc-status-details-bin"]
    assert ("x-label", "seven") in answered.trailers


@pytest.mark.parametrize("model", ["echo", "nope"])
def test_the_request_id_comes_back_once(server, model):
    context = Context((ID, "mine"))
    unary(server, "ModelInfer", infer(model), context)
    assert [value for name, value in context.trailers if name == ID] == ["mine"]


def test_a_forwarded_caller_is_no_caller_of_this_machine(server):
    context = Context()
    unload = protobuf.RepositoryModelUnloadRequest(model_name="echo").SerializeToString()
    unary(server, "RepositoryModelUnload", unload, context)
    assert context.code == grpc.StatusCode.PERMISSION_DENIED


def test_a_stream_goes_on_while_its_requests_come(server):
    context = Context((ID, "mine"))

    async def run():
        forwarder = GrpcForwarder(server)
        answered = asyncio.Event()

        async def messages():
            for model in ("echo", "nope", "echo"):
                yield infer(model)
                await answered.wait()
                answered.clear()

        found = []
        async for answer in forwarder.stream("ModelStreamInfer", messages(), context):
            found.append(protobuf.ModelStreamInferResponse.FromString(answer.SerializeToString()))
            assert context.trailers == [(ID, "mine")]
            answered.set()
        await forwarder._channel.close()
        return found

    found = asyncio.run(run())
    assert [bool(answer.error_message) for answer in found] == [False, True, False]


@pytest.mark.parametrize(
    ("address", "tls", "why"), [("", None, "gRPC is off"), ("127.0.0.1:1", True, "want TLS")]
)
def test_a_server_that_cannot_be_called(address, tls, why):
    context = Context()
    with pytest.raises(CallFailed, match=why):
        unary(SimpleNamespace(grpc=address, tls_context=lambda: tls), "ServerLive", b"", context)
    assert context.code == grpc.StatusCode.UNAVAILABLE


def test_every_call_of_the_service_is_registered():
    @with_grpc_calls
    class Deployment:
        pass

    registered = []
    add_servicer(None, SimpleNamespace(add_generic_rpc_handlers=registered.append))
    [[handlers]] = registered
    for name in protobuf.methods(protobuf.INFERENCE):
        assert callable(getattr(Deployment, name))
        details = SimpleNamespace(method=f"/{protobuf.INFERENCE}/{name}", invocation_metadata=())
        handler = handlers.service(details)
        assert handler.request_streaming == handler.response_streaming
        assert handler.request_streaming == (name == "ModelStreamInfer")
