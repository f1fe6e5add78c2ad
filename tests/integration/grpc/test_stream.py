"""ModelStreamInfer: order, errors that leave the stream open, marks, cancellation, stop."""

import contextlib
import queue
import threading

import grpc
import numpy as np
import pytest

from ksrv.protocol.protobuf import INFERENCE, methods
from ksrv.server.settings import ServerSettings
from tests.support.engine.held_engine import was_cancelled
from tests.support.wait_until import wait_until
from tests.support.wire.grpc_calls import connect, infer_request, new_server, row_request, running


@pytest.fixture
def channel(engine):
    with running(engine) as address, connect(address) as found:
        yield found


def stream(channel, requests, timeout=60, metadata=None):
    request, response = methods(INFERENCE)["ModelStreamInfer"]
    stub = channel.stream_stream(
        f"/{INFERENCE}/ModelStreamInfer",
        lambda made: made if isinstance(made, bytes) else request.SerializeToString(made),
        response.FromString,
    )
    return stub(requests, timeout=timeout, metadata=metadata)


def add(id, **parameters):
    row = np.zeros((1, 4), np.float32)
    return infer_request(
        "add", ("x", "FP32", [1, 4]), raw=[row.tobytes()], id=id, parameters=parameters
    )


@pytest.mark.grpcio
def test_answers_come_in_the_order_of_the_requests(engine, channel):
    requests = [row_request("slow", id="0"), *(add(str(i)) for i in range(1, 100))]
    answers = stream(channel, iter(requests))
    wait_until(lambda: len(engine.handles) >= 64)  # later requests do not wait for the first answer
    engine.release.set()
    found = list(answers)
    assert [answer.infer_response.id for answer in found] == [str(i) for i in range(100)]
    assert not any(answer.error_message for answer in found)
    assert found[5].infer_response.raw_output_contents[0] == np.ones(4, np.float32).tobytes()


@pytest.mark.grpcio
def test_bad_request_is_reported_and_the_stream_continues(channel):
    bad = add("2")
    bad.raw_input_contents[0] = b"1"
    found = list(
        stream(
            channel,
            iter([add("1"), bad, b"\x0a\xff", row_request("broken", id="4"), add("5")]),
        )
    )
    assert [answer.infer_response.id for answer in found] == ["1", "", "", "4", "5"]
    assert [bool(answer.error_message) for answer in found] == [False, True, True, True, False]
    assert "Expected 16 by" in found[1].error_message
    assert "secret" not in found[3].error_message


def test_a_stream_of_triton_grpc_error_ends_with_the_status_of_its_first_error(channel):
    bad = add("2")
    bad.raw_input_contents[0] = b"1"
    for wrong, code in ((bad, "INVALID_ARGUMENT"), (row_request("broken", id="4"), "INTERNAL")):
        answers = stream(
            channel,
            iter([add("1"), wrong, add("5")]),
            metadata=[("triton_grpc_error", "true")],
        )
        assert next(answers).infer_response.id == "1"
        with pytest.raises(grpc.RpcError) as failed:
            next(answers)
        assert failed.value.code().name == code


def test_each_last_answer_is_marked(channel):
    marked = {"triton_enable_empty_final_response": True}
    found = list(stream(channel, iter([add("1", **marked), add("2"), row_request("full", id="3")])))
    for answer in found:
        assert answer.infer_response.parameters["triton_final_response"].bool_param
    assert "queue" in found[2].error_message


def test_cancelled_stream_cancels_its_requests(engine, channel):
    feed = queue.Queue()
    answers = stream(channel, iter(feed.get, None))
    feed.put(row_request("slow", id="1"))
    feed.put(row_request("slow", id="2"))
    wait_until(lambda: len(engine.handles) == 2)
    answers.cancel()
    feed.put(None)
    wait_until(lambda: all(was_cancelled(handle) for handle in engine.handles))
    with pytest.raises(grpc.RpcError):
        list(answers)
    assert next(iter(stream(channel, iter([add("3")])))).infer_response.id == "3"


@contextlib.contextmanager
def stopped_with_one_under_way(engine):
    """The answers of a stream whose server starts to stop while the engine has a request."""
    server = new_server(engine, ServerSettings())
    port = server.start("127.0.0.1:0")
    with connect(f"127.0.0.1:{port}") as channel:
        feed = queue.Queue()
        answers = stream(channel, iter(feed.get, None))
        feed.put(row_request("slow", id="1"))
        wait_until(lambda: len(engine.handles) == 1)
        server.begin_stop(30)
        engine.release.set()
        yield answers
        feed.put(None)
        server.stop(30)


def test_stop_answers_accepted_requests_and_ends_the_stream(engine):
    with stopped_with_one_under_way(engine) as answers:
        assert next(answers).infer_response.id == "1"
        with pytest.raises(grpc.RpcError) as caught:
            next(answers)
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE


def test_stop_does_not_lose_a_request_during_acceptance(engine, monkeypatch):
    """The engine has the request before `submit` returns."""
    go_on, submit = threading.Event(), engine.submit

    def return_late(*arguments, **options):
        handle = submit(*arguments, **options)
        assert go_on.wait(30)
        return handle

    monkeypatch.setattr(engine, "submit", return_late)
    with stopped_with_one_under_way(engine) as answers:
        go_on.set()
        assert next(answers).infer_response.id == "1"
