"""TorchServe's gRPC services, with clients made of the messages that upstream's stubs send."""

import json

import grpc
import pytest

from ksrv.protocol.protobuf import REFLECTION, methods
from ksrv.testing import Server
from tests.support.torchserve.archives import archive
from tests.support.wire.grpc_calls import call, method

INFERENCE = "org.pytorch.serve.grpc.inference.InferenceAPIsService"
MANAGEMENT = "org.pytorch.serve.grpc.management.ManagementAPIsService"
CPU = {"deviceType": "cpu"}
CONTROL = [("authorization", "Bearer control-token")]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("grpc") / "store"
    folder.mkdir()
    archive(folder, "outcome", "outcome_handler.py", settings=CPU)
    archive(folder, "seen", "seen_handler.py", settings=CPU)
    archive(folder, "two", "seen_handler.py", settings=CPU)
    archive(folder, "two", "seen_handler.py", settings=CPU, version="2.0", file_name="two_second")
    return folder


@pytest.fixture(scope="module", params=["native", "grpcio"])
def server(store, request):
    with Server(
        store,
        torchserve_api=True,
        grpc_server=request.param,
        model_control="explicit",
        load_model=("outcome", "seen"),
        ready_when="any",
    ) as one:
        yield one


@pytest.fixture
def channel(server):
    with grpc.insecure_channel(server.grpc) as one:
        yield one


def predict(channel, mode, model="outcome", **fields):
    body = (
        json.dumps({"mode": mode}).encode() if isinstance(mode, str) else json.dumps(mode).encode()
    )
    return call(
        channel, "Predictions", INFERENCE, 60, model_name=model, input={"body": body}, **fields
    ).prediction


def manage(channel, name, metadata=None, **fields):
    return call(channel, name, MANAGEMENT, 120, metadata, **fields).msg


def stream_of(channel, name, requests, timeout=60):
    kind, _ = methods(INFERENCE)[name]
    if name == "StreamPredictions":
        made = method(channel, name, INFERENCE, "unary_stream")
        return list(made(kind(**requests[0]), timeout=timeout))
    made = method(channel, name, INFERENCE, "stream_stream")
    return list(made(iter([kind(**one) for one in requests]), timeout=timeout))


def asking(mode, **fields):
    return {
        "model_name": "outcome",
        "input": {"body": json.dumps({"mode": mode}).encode()},
    } | fields


def test_ping(channel):
    assert json.loads(call(channel, "Ping", INFERENCE).health) == {"status": "Healthy"}


class TestPredictions:
    def test_an_answer_is_the_handlers_item(self, channel):
        assert predict(channel, "str") == b"hello"
        assert predict(channel, "bytes") == b"\x00\x01\xff"
        assert json.loads(predict(channel, "dict_item")) == {"b": 1, "a": [1, 2]}

    def test_a_version_may_be_named(self, channel):
        assert predict(channel, "str", model_version="1.0") == b"hello"

    def test_the_parts_of_a_row_have_the_names_of_the_input(self, channel):
        fields = {"model_name": "seen", "input": {"data": b"\x01\x02", "more": b"x"}}
        seen = call(channel, "Predictions", INFERENCE, 60, **fields).prediction.decode()
        assert "data" in seen
        assert "more" in seen

    @pytest.mark.parametrize(
        ("fields", "code", "told"),
        [
            ({}, "INVALID_ARGUMENT", "Parameter model_name is required."),
            ({"model_name": "nope"}, "NOT_FOUND", "Model not found: nope"),
            (
                {"model_name": "outcome", "model_version": "9"},
                "NOT_FOUND",
                "Model version: 9 does not exist for model: outcome",
            ),
            (
                {"model_name": "outcome", "input": {f"part{one}": b"" for one in range(2000)}},
                "INVALID_ARGUMENT",
                "the request has more than",
            ),
        ],
    )
    def test_what_cannot_be_asked(self, channel, fields, code, told):
        with pytest.raises(grpc.RpcError) as failed:
            call(channel, "Predictions", INFERENCE, **fields)
        assert failed.value.code().name == code
        assert told in failed.value.details()

    @pytest.mark.parametrize(
        ("mode", "code"),
        [
            ("exception", "UNAVAILABLE"),  # 503 over REST
            ("prediction_400", "INVALID_ARGUMENT"),
            ("prediction_422", "INVALID_ARGUMENT"),
            ("prediction_default", "INTERNAL"),
        ],
    )
    def test_a_handlers_error_has_its_code(self, channel, mode, code):
        with pytest.raises(grpc.RpcError) as failed:
            predict(channel, mode)
        assert failed.value.code().name == code

    def test_bytes_that_are_no_message_are_refused(self, channel):
        made = channel.unary_unary(f"/{INFERENCE}/Predictions")
        with pytest.raises(grpc.RpcError) as failed:
            made(b"\xff\xff\xff", timeout=20)
        assert failed.value.code().name == "INVALID_ARGUMENT"
        assert "PredictionsRequest" in failed.value.details()

    def test_a_deadline_ends_a_call(self, channel):
        with pytest.raises(grpc.RpcError) as failed:
            call(
                channel,
                "Predictions",
                INFERENCE,
                0.3,
                model_name="outcome",
                input={"body": json.dumps({"mode": "slow", "t": 1}).encode()},
            )
        assert failed.value.code().name == "DEADLINE_EXCEEDED"
        assert predict(channel, "str") == b"hello"


class TestStreams:
    def test_chunks_come_one_by_one(self, channel):
        answers = stream_of(channel, "StreamPredictions", [asking("stream")])
        assert [one.prediction for one in answers] == [b"chunk0 ", b"chunk1 ", b"chunk2 ", b"last"]

    def test_an_answer_without_chunks_is_one(self, channel):
        (answer,) = stream_of(channel, "StreamPredictions", [asking("str")])
        assert answer.prediction == b"hello"

    def test_a_failure_ends_the_stream(self, channel):
        with pytest.raises(grpc.RpcError) as failed:
            stream_of(channel, "StreamPredictions", [asking("str", model_name="nope")])
        assert failed.value.code().name == "NOT_FOUND"

    def test_requests_of_a_sequence_are_answered_in_their_order(self, channel):
        requests = [
            asking("str", sequence_id="a"),
            asking("prediction_400", sequence_id="a"),
            asking("int", sequence_id="a"),
            asking("str"),
        ]
        answers = stream_of(channel, "StreamPredictions2", requests)
        assert [one.prediction for one in answers] == [b"hello", b"", b"7", b""]
        assert [one.status.code for one in answers] == [0, 3, 0, 3]
        assert answers[1].status.message == "custom 400"
        assert answers[3].status.message == "Parameter sequenceId is required."
        assert [one.sequence_id for one in answers] == ["a", "a", "a", ""]


class TestManagement:
    def test_an_archive_is_registered_described_scaled_and_unregistered(self, channel):
        text = 'Model "two" Version: 1.0 registered with 1 initial workers'
        assert manage(channel, "RegisterModel", url="two.mar", initial_workers=1) == text
        with pytest.raises(grpc.RpcError) as failed:
            manage(channel, "RegisterModel", url="two.mar")
        assert failed.value.code().name == "ABORTED"
        manage(channel, "RegisterModel", url="two_second.mar", synchronous=True)
        text = 'Default version successfully updated for model "two" to "2.0"'
        assert manage(channel, "SetDefault", model_name="two", model_version="2.0") == text
        (described,) = json.loads(manage(channel, "DescribeModel", model_name="two"))
        assert described["modelVersion"] == "2.0"
        every = json.loads(
            manage(channel, "DescribeModel", model_name="two", model_version="all", customized=True)
        )
        assert sorted(one["modelVersion"] for one in every) == ["1.0", "2.0"]
        assert all("customizedMetadata" in one for one in every)
        text = "Workers scaled to 2 for model: two, version: 2.0"
        scaled = manage(channel, "ScaleWorker", model_name="two", model_version="2.0", min_worker=2)
        assert scaled == text
        listed = json.loads(manage(channel, "ListModels", limit=1))
        assert listed["models"] == [{"modelName": "outcome", "modelUrl": "outcome.mar"}]
        assert listed["nextPageToken"] == "1"
        text = 'Model "two" unregistered'
        assert manage(channel, "UnregisterModel", model_name="two") == text
        with pytest.raises(grpc.RpcError) as failed:
            manage(channel, "DescribeModel", model_name="two")
        assert failed.value.code().name in ("NOT_FOUND", "UNAVAILABLE")

    @pytest.mark.parametrize(
        ("name", "fields", "code", "told"),
        [
            ("RegisterModel", {"url": "absent.mar"}, "NOT_FOUND", "Model not found at: absent.mar"),
            ("SetDefault", {"model_name": "seen", "model_version": "9"}, "NOT_FOUND", "exist"),
            ("ListModels", {"limit": -1}, "INVALID_ARGUMENT", "limit must be a whole number"),
        ],
    )
    def test_what_cannot_be_done(self, channel, name, fields, code, told):
        with pytest.raises(grpc.RpcError) as failed:
            manage(channel, name, **fields)
        assert failed.value.code().name == code
        assert told in failed.value.details()


def test_reflection_names_the_services(channel):
    kind, _ = methods(REFLECTION)["ServerReflectionInfo"]
    made = method(channel, "ServerReflectionInfo", REFLECTION, "stream_stream")
    (told,) = made(iter([kind(list_services="")]), timeout=20)
    names = [one.name for one in told.list_services_response.service]
    assert INFERENCE in names
    assert MANAGEMENT in names


@pytest.mark.parametrize("carrier", ["native", "grpcio"])
def test_changes_need_the_control_token(store, carrier):
    tokens = store.parent / "control"
    tokens.write_text("control-token\n")
    with (
        Server(
            store,
            torchserve_api=True,
            control_token_file=str(tokens),
            grpc_server=carrier,
            model_control="explicit",
            load_model=("seen",),
            ready_when="any",
        ) as server,
        grpc.insecure_channel(server.grpc) as channel,
    ):
        for name in ("RegisterModel", "ScaleWorker", "SetDefault", "UnregisterModel"):
            with pytest.raises(grpc.RpcError) as failed:
                manage(channel, name)
            assert failed.value.code().name == "UNAUTHENTICATED", name
            with pytest.raises(grpc.RpcError) as failed:
                manage(channel, name, CONTROL)
            assert failed.value.code().name == "INVALID_ARGUMENT", name
        assert json.loads(manage(channel, "ListModels"))["models"]


def test_without_the_routes_there_are_no_services(store):
    with Server(store, model_control="explicit", load_model=("seen",)) as server:
        with grpc.insecure_channel(server.grpc) as channel, pytest.raises(grpc.RpcError) as failed:
            call(channel, "Ping", INFERENCE)
        assert failed.value.code().name == "UNIMPLEMENTED"
