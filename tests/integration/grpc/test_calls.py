"""All calls except ModelInfer: state, description, repository, refusals, health, reflection, access."""

import contextlib
import socket
import threading
import time

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from ksrv.protocol.protobuf import (
    HEALTH,
    INFERENCE,
    REFLECTION,
    REFLECTION_ALPHA,
    message_class,
    methods,
)
from ksrv.server.credentials import Access
from ksrv.server.grpc import limits as bounds
from ksrv.server.settings import ServerSettings
from tests.support.engine.held_engine import MODELS
from tests.support.wire.grpc_calls import (
    call,
    connect,
    method,
    new_server,
    refused,
    row_request,
    running,
    stub_infer,
)


@pytest.fixture
def address(engine):
    with running(engine) as found:
        yield found


@pytest.fixture
def channel(address):
    with connect(address) as found:
        yield found


def test_health_and_readiness_calls_answer(engine, channel):
    assert call(channel, "ServerLive").live
    assert call(channel, "ServerReady").ready
    assert call(channel, "ModelReady", name="add").ready
    assert not call(channel, "ModelReady", name="bad").ready
    assert "'nope'" in refused("NOT_FOUND", lambda: call(channel, "ModelReady", name="nope"))
    refused("UNAVAILABLE", lambda: call(channel, "ModelMetadata", name="bad"))
    engine.drain()
    assert not call(channel, "ServerReady").ready
    assert not call(channel, "ModelReady", name="add").ready


def test_metadata_calls_answer(channel):
    found = call(channel, "ServerMetadata")
    assert found.name == "ksrv"
    assert "binary_tensor_data" in found.extensions
    found = call(channel, "ModelMetadata", name="image")
    assert list(found.inputs[0].shape) == [-1, 8, 8, 3]
    assert list(found.versions) == ["1"]
    # MLServer's proto has a map of messages where the Open Inference Protocol has one of texts: no client of it could
    # read the answer of a model with images or labels.
    assert not found.properties
    found = call(channel, "ModelConfig", name="add").config
    assert (found.max_batch_size, list(found.input[0].dims)) == (8, [4])
    stub_infer(channel)(row_request("add"), timeout=20)
    (found,) = call(channel, "ModelStatistics", name="add").model_stats
    assert found.inference_stats.success.count == 1
    assert found.inference_stats.success.ns > 0


def states(channel):
    return {(model.name, model.state) for model in call(channel, "RepositoryIndex").models}


def test_repository_calls_work(engine, channel):
    assert {("add", "READY"), ("bad", "UNAVAILABLE")} <= states(channel)
    assert "bad" not in {
        model.name for model in call(channel, "RepositoryIndex", ready=True).models
    }
    call(channel, "RepositoryModelLoad", model_name="add")
    assert engine.changes == [("load", "add")]
    parameter = message_class("inference.ModelRepositoryParameter")
    call(
        channel,
        "RepositoryModelUnload",
        model_name="add",
        parameters={"unload_dependents": parameter(bool_param=True)},
    )
    assert engine.changes[1:] == [("unload", "add")]
    assert ("add", "UNAVAILABLE") in states(channel)
    for given in (
        {"config": parameter(string_param="{}")},
        {"unload_dependents": parameter(string_param="yes")},
    ):
        refused(
            "INVALID_ARGUMENT",
            lambda given=given: call(
                channel, "RepositoryModelLoad", model_name="add", parameters=given
            ),
        )
    refused("UNIMPLEMENTED", lambda: call(channel, "RepositoryIndex", repository_name="r"))
    refused("NOT_FOUND", lambda: call(channel, "RepositoryModelLoad", model_name="nope"))


@pytest.mark.parametrize(
    "name",
    [
        f"{kind}SharedMemory{verb}"
        for kind in ("System", "Cuda")
        for verb in ("Status", "Register", "Unregister")
    ],
)
def test_disabled_shared_memory_names_the_setting(channel, name):
    text = refused("UNIMPLEMENTED", lambda: call(channel, name))
    assert text == "shared memory is off; --allow-shared-memory switches it on"


@pytest.mark.grpcio
def test_every_call_of_the_services_is_registered(channel):
    for service in (INFERENCE, HEALTH, REFLECTION, REFLECTION_ALPHA):
        for name in methods(service):
            answer = channel.unary_stream(f"/{service}/{name}")(b"", timeout=0.5)
            with contextlib.suppress(grpc.RpcError):
                next(answer)
            answer.cancel()
            assert "Method not found" not in (answer.details() or "")
    refused("UNIMPLEMENTED", lambda: channel.unary_unary(f"/{INFERENCE}/Nothing")(b"", timeout=20))


@pytest.mark.parametrize(
    "path", [f"/{INFERENCE}/ModelReady", f"/{HEALTH}/Check", f"/{INFERENCE}/RepositoryModelLoad"]
)
def test_malformed_requests_get_invalid_argument(channel, path):
    text = refused("INVALID_ARGUMENT", lambda: channel.unary_unary(path)(b"\x0a\xff", timeout=20))
    assert "is not a" in text


def check(channel, service=""):
    return call(channel, "Check", HEALTH, service=service).status


def test_health_check_of_server_and_models(engine, channel):
    assert check(channel) == 1
    assert check(channel, INFERENCE) == 1
    assert check(channel, "add") == 1
    assert check(channel, "add/1") == 1
    refused("NOT_FOUND", lambda: check(channel, "nope"))
    refused("NOT_FOUND", lambda: check(channel, "add/9"))
    assert check(channel, "bad") == 2
    found = call(channel, "List", HEALTH).statuses
    assert found["bad"].status == 2
    assert found["echo"].status == 1
    assert set(found) == {"", INFERENCE, *MODELS}
    engine.drain()
    assert check(channel) == 2
    assert check(channel, "add") == 2
    assert call(channel, "List", HEALTH).statuses[""].status == 2
    assert channel.unary_unary(f"/{HEALTH}/Check")(b"", timeout=20) == b"\x08\x02"


def watch(channel, service=""):
    request, _ = methods(HEALTH)["Watch"]
    return method(channel, "Watch", HEALTH, "unary_stream")(request(service=service), timeout=60)


@pytest.mark.grpcio
def test_health_watch_reports_changes(engine, channel):
    server, model = watch(channel), watch(channel, "add")
    assert next(server).status == next(model).status == 1
    engine.unload("add")
    assert next(model).status == 2
    engine.load("add")
    assert next(model).status == 1
    engine.drain()
    assert next(server).status == next(model).status == 2
    for watched in (server, model):
        watched.cancel()
    unknown = watch(channel, "nope")
    assert next(unknown).status == 3
    unknown.cancel()


def test_stop_notifies_watchers(engine):
    server = new_server(engine, ServerSettings())
    port = server.start("127.0.0.1:0")
    with connect(f"127.0.0.1:{port}") as channel:
        states = watch(channel)
        assert next(states).status == 1
        stopper = threading.Thread(target=server.stop, args=(30,))
        stopper.start()
        assert [state.status for state in states] == [2]
        stopper.join(20)
        assert not stopper.is_alive()


def test_streams_beyond_the_limit_are_refused_until_others_end(engine, monkeypatch):
    monkeypatch.setattr(bounds, "MAX_WATCHES", 2)
    with running(engine) as address, connect(address) as channel:
        first, second = watch(channel), watch(channel)
        assert next(first).status == next(second).status == 1
        refused("RESOURCE_EXHAUSTED", lambda: next(watch(channel)))
        first.cancel()
        end = time.monotonic() + 20
        while True:
            third = watch(channel)
            try:
                assert next(third).status == 1
                break
            except grpc.RpcError:
                assert time.monotonic() < end, "the place of a cancelled stream did not return"
        second.cancel()
        third.cancel()


@pytest.mark.parametrize("service", [REFLECTION, REFLECTION_ALPHA])
def test_reflection_describes_every_service(channel, service):
    request, _ = methods(service)["ServerReflectionInfo"]
    stub = method(channel, "ServerReflectionInfo", service, "stream_stream")
    asked = [
        request(list_services=""),
        request(file_containing_symbol="inference.GRPCInferenceService"),
        request(file_by_filename="health.proto"),
        request(file_containing_symbol="inference.Nothing"),
        request(file_by_filename="/etc/passwd"),
        request(all_extension_numbers_of_type="inference.ModelInferRequest"),
        request(all_extension_numbers_of_type="inference.Nothing"),
        request(file_containing_extension={"containing_type": "x", "extension_number": 1}),
        request(),
    ]
    found = list(stub(iter(asked), timeout=20))
    assert [answer.original_request for answer in found] == asked
    names = {entry.name for entry in found[0].list_services_response.service}
    others = {"tensorflow.serving.ModelService", "tensorflow.serving.PredictionService"}
    assert names == {INFERENCE, HEALTH, REFLECTION, REFLECTION_ALPHA, *others}
    files = [
        FileDescriptorProto.FromString(data).name
        for data in found[1].file_descriptor_response.file_descriptor_proto
    ]
    assert files == ["inference.proto", "model_config.proto"]
    assert found[2].file_descriptor_response.file_descriptor_proto
    assert found[5].all_extension_numbers_response.base_type_name == "inference.ModelInferRequest"
    codes = [answer.error_response.error_code for answer in found]
    assert codes == [0, 0, 0, 5, 5, 0, 5, 5, 3]


class NotingAccess(Access):
    """Notes the peers of calls that change models."""

    def __init__(self):
        super().__init__(ServerSettings())
        self.peers = []

    def check_control(self, authorization, *, peer, forwarded, origin, host):
        self.peers.append(peer)


@pytest.mark.grpcio
def test_peers_on_ipv6_and_unix_sockets_are_named(engine, tmp_path):
    access = NotingAccess()
    addresses = [f"unix:{tmp_path}/grpc.sock"]
    if socket.has_ipv6:
        addresses.append("[::1]:0")
    for address in addresses:
        server = new_server(engine, ServerSettings(), access=access)
        port = server.start(address)
        target = address if address.startswith("unix") else f"[::1]:{port}"
        with connect(target) as channel:
            call(channel, "RepositoryModelLoad", model_name="add")
        server.stop(5)
    assert list(dict.fromkeys(access.peers)) == ["", "::1"][: len(addresses)]
