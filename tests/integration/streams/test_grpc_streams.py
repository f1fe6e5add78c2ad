"""Generators as handlers over ModelStreamInfer and ModelInfer."""

import queue

import grpc
import pytest

from ksrv.protocol.protobuf import INFERENCE, methods
from ksrv.testing import Server
from tests.support.streams import write_later, write_words
from tests.support.wait_until import wait_until
from tests.support.wire.grpc_calls import infer_request, method


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    for executor, behind in (("inline", ""), ("process", "-process")):
        yaml = f"executor: {executor}\n"
        write_words(root, "words" + behind, yaml + "batching: {max_batch_size: 8}\n")
        write_later(root, "later" + behind, yaml)
    with Server(root) as made:
        yield made


@pytest.fixture
def channel(server):
    with grpc.insecure_channel(server.grpc) as found:
        yield found


@pytest.fixture(params=["", "-process"])
def behind(request):
    return request.param


def text(model, words, id="1", **parameters):
    data = words.encode()
    raw = len(data).to_bytes(4, "little") + data
    return infer_request(model, ("text", "BYTES", [1]), raw=[raw], id=id, parameters=parameters)


def stream(channel, requests, timeout=60):
    return method(channel, "ModelStreamInfer", kind="stream_stream")(requests, timeout=timeout)


def piece(answer):
    return answer.infer_response.raw_output_contents[0][4:].decode()


def test_each_piece_is_an_answer_with_the_id(channel, behind):
    for model, expected in (("words", ["ab ", "c "]), ("later", ["a", "b", " ", "c"])):
        found = list(stream(channel, iter([text(model + behind, "ab c")])))
        assert [piece(answer) for answer in found] == expected
        assert {answer.infer_response.id for answer in found} == {"1"}
        marks = [answer.infer_response.parameters["triton_final_response"] for answer in found]
        assert not any(mark.bool_param for mark in marks)


def test_the_end_is_told_on_request(channel, behind):
    asked = text("words" + behind, "ab c", triton_enable_empty_final_response=True)
    found = list(stream(channel, iter([asked])))
    marks = [
        answer.infer_response.parameters["triton_final_response"].bool_param for answer in found
    ]
    assert marks == [False, False, True]
    assert not found[-1].infer_response.outputs


def test_a_stream_may_be_empty(channel, behind):
    """As with Triton's decoupled models: no response, and with the parameter one that is final."""
    asked = [text(model + behind, "", model) for model in ("words", "later")]
    asked.append(text("words" + behind, "a", "last"))
    found = list(stream(channel, iter(asked)))
    assert [(answer.infer_response.id, piece(answer)) for answer in found] == [("last", "a ")]
    asked = text("words" + behind, "", triton_enable_empty_final_response=True)
    (final,) = stream(channel, iter([asked]))
    assert final.infer_response.parameters["triton_final_response"].bool_param
    assert not final.infer_response.outputs and not final.error_message


def test_unary_calls_get_the_joined_texts(channel, behind):
    request, response = methods(INFERENCE)["ModelInfer"]
    call = channel.unary_unary(
        f"/{INFERENCE}/ModelInfer", request.SerializeToString, response.FromString
    )
    answer = call(text("words" + behind, "ab c"), timeout=60)
    assert answer.raw_output_contents[0][4:] == b"ab c "
    for model in ("words", "later"):
        empty = call(text(model + behind, ""), timeout=60)
        assert empty.outputs[0].shape == [1] and empty.raw_output_contents == [bytes(4)]


def test_a_failure_ends_its_request_and_the_call_goes_on(channel, behind):
    asked = [text("words" + behind, words, str(n)) for n, words in enumerate(["a panic", "b"])]
    found = list(stream(channel, iter(asked)))
    failed = [answer for answer in found if answer.error_message]
    assert [answer.infer_response.id for answer in failed] == ["0"]
    assert "secret" not in failed[0].error_message
    pieces = {answer.infer_response.id: piece(answer) for answer in found if answer not in failed}
    assert pieces == {"0": "a ", "1": "b "}


def test_requests_of_one_call_do_not_wait_for_each_other(channel, behind):
    """A long stream that is asked for later comes while the first still runs, or its batch would stall."""
    asked = [text("words" + behind, "x", str(n), times=500) for n in range(4)]
    found = list(stream(channel, iter(asked)))
    assert len(found) == 2000
    assert not any(answer.error_message for answer in found)


def test_the_generator_is_closed_when_the_call_is_cancelled(channel, behind, tmp_path):
    closed = tmp_path / "closed"
    feed = queue.Queue()
    answers = stream(channel, iter(feed.get, None))
    feed.put(text("words" + behind, "x", times=100_000, pause="0.01", closed=str(closed)))
    assert piece(next(answers)) == "x "
    answers.cancel()
    feed.put(None)
    wait_until(closed.exists)
