"""Streams of a replica, over HTTP and gRPC."""

import queue

import numpy as np
import pytest
import tritonclient.grpc

from tests.support.ray.ray_cluster import listed
from tests.support.streams import StreamedResponse, pieces, text_request, write_later, write_words
from tests.support.wait_until import wait_until

pytest.importorskip("ray")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def address(cluster, tmp_path_factory):
    from ray import serve

    import ksrv.ray

    models = tmp_path_factory.mktemp("models")
    write_words(models)
    write_later(models)
    serve.run(ksrv.ray.app(models, settings={"insecure": True, "drain_delay": 0}))
    yield listed(1)[0]
    serve.delete("default")


def test_a_stream_over_http(address):
    with StreamedResponse(address, "/v2/models/words/infer", text_request("a b c")) as answer:
        assert (answer.status, answer.type) == (200, "text/event-stream; charset=utf-8")
        assert pieces(document for _, document in answer.events()) == ["a ", "b ", "c "]


def test_pieces_are_sent_at_once_and_the_handler_learns_of_a_leaving_client(address, tmp_path):
    closed = tmp_path / "closed"
    asked = text_request("ab.", closed=str(closed))  # and nothing for a minute
    with StreamedResponse(address, "/v2/models/later/infer", asked) as answer:
        events = answer.events()
        assert pieces(next(events)[1] for _ in "ab") == ["a", "b"]
        assert not closed.exists()
    wait_until(closed.exists, 30)


def test_a_stream_over_grpc(address):
    def text(value):
        tensor = tritonclient.grpc.InferInput("text", [1], "BYTES")
        tensor.set_data_from_numpy(np.array([value], object))
        return [tensor]

    answers = queue.Queue()
    with tritonclient.grpc.InferenceServerClient(address.grpc) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        client.async_stream_infer("words", text("a b"), request_id="1")
        first = [answers.get(timeout=60) for _ in range(2)]
        client.async_stream_infer("nope", text("a"), request_id="2")
        refused = answers.get(timeout=60)
        client.async_stream_infer("words", text("c"), request_id="3")
        last = answers.get(timeout=60)
        client.stop_stream()
    assert [result.as_numpy("piece")[0] for result, _ in first] == [b"a ", b"b "]
    assert "nope" in str(refused[1])
    assert last[0].as_numpy("piece")[0] == b"c "
