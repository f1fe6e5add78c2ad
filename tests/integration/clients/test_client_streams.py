"""`ksrv.client` where answers come in parts: `stream` and `generate`, over SSE and gRPC, blocking and asyncio."""

import asyncio

import numpy as np
import pytest

from ksrv.client import (
    AsyncClient,
    Client,
    ClientError,
    ConnectionFailed,
    InvalidRequest,
    StreamFailed,
    Unavailable,
)
from ksrv.client.operations import Operation
from ksrv.client.rest import EventReader
from ksrv.testing import Server
from tests.support.clients.scripted_server import Scripted
from tests.support.models import write_model
from tests.support.wait_until import wait_until

COUNTER = """
import time
from pathlib import Path

from ksrv.errors import InvalidRequest

CLOSED = Path(__file__).with_name("closed")

def inference(last):
    count = int(last[0][0])
    if count == -1:
        raise InvalidRequest("no such count")
    try:
        for number in range(abs(count)):
            yield {"number": [[number]], "word": [f"word{number} \\u00e4"]}
            if count < 0:
                raise ValueError("out of words")
            if count > 1000:
                time.sleep(0.01)
    finally:
        CLOSED.touch()
"""
DECLARED = (
    "inputs: [{name: last, datatype: INT32, shape: [-1, 1]}]\n"
    "outputs: [{name: number, datatype: INT32, shape: [-1, 1]}, {name: word, datatype: BYTES, shape: [-1]}]\n"
    "warmup: false\n"
)
ECHO = 'def inference(text_input): return {"text_output": [text.upper() for text in text_input]}\n'
STORY = """
def inference(text_input):
    for word in text_input[0].decode().split():
        yield [word + " "]
"""
TEXTS = (
    "inputs: [{name: text_input, datatype: BYTES, shape: [-1]}]\n"
    "outputs: [{name: text_output, datatype: BYTES, shape: [-1]}]\nwarmup: false\n"
)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("streaming-models")
    write_model(root, "counter", COUNTER, DECLARED)
    write_model(root, "echo", ECHO, TEXTS)
    write_model(root, "story", STORY, TEXTS)
    return root


@pytest.fixture(scope="module")
def server(root):
    with Server(root) as running:
        yield running


@pytest.fixture(params=["http", "grpc"])
def url(request, server):
    return server.url if request.param == "http" else f"grpc://{server.grpc}"


def blocking(url, count, **arguments):
    with Client(url) as client:
        return list(client.stream("counter", [[count]], **arguments))


def with_asyncio(url, count, **arguments):
    async def ask():
        async with AsyncClient(url) as client:
            return [part async for part in client.stream("counter", [[count]], **arguments)]

    return asyncio.run(ask())


@pytest.fixture(params=[blocking, with_asyncio])
def ask(request):
    return request.param


def test_parts_come_in_their_order(url, ask):
    parts = ask(url, 5, request_id="five")
    assert [int(part["number"][0, 0]) for part in parts] == [0, 1, 2, 3, 4]
    assert [part["word"][0].decode() for part in parts] == [f"word{n} ä" for n in range(5)]
    assert {part.id for part in parts} == {"five"}


def test_no_part_is_an_empty_stream(url, ask):
    assert ask(url, 0) == []


def test_outputs_that_are_asked_for(url, ask):
    assert [list(part) for part in ask(url, 2, outputs=["number"])] == [["number"], ["number"]]


def test_failure_after_a_part_ends_the_stream(url):
    with Client(url) as client:
        parts = client.stream("counter", [[-3]])
        assert int(next(parts)["number"][0, 0]) == 0
        with pytest.raises(StreamFailed, match="the stage inference"):
            next(parts)
        assert client.ready("counter")


def test_a_failure_before_the_first_part_has_its_status_over_rest(url, ask):
    with pytest.raises(InvalidRequest if url.startswith("http") else StreamFailed, match="no such"):
        ask(url, -1)


def test_a_loop_that_is_left_ends_the_request(url, root):
    closed = root / "counter" / "closed"
    closed.unlink(missing_ok=True)
    with Client(url) as client:
        for part in client.stream("counter", [[2000]]):
            if part["number"][0, 0] == 3:
                break
        wait_until(closed.exists)
        assert client.ready("counter")


def test_a_loop_of_asyncio_that_is_left_ends_the_request(url, root):
    closed = root / "counter" / "closed"
    closed.unlink(missing_ok=True)

    async def leave():
        async with AsyncClient(url) as client:
            async for part in client.stream("counter", [[2000]]):
                if part["number"][0, 0] == 3:
                    break
            await asyncio.to_thread(wait_until, closed.exists)

    asyncio.run(leave())


BUSY = b"HTTP/1.1 503 Busy\r\nRetry-After: 0\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
PART = b'data: {"model_name": "m", "outputs": [{"name": "y", "datatype": "INT32", "shape": [1], "data": [7]}]}\n\n'
CUT = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    + f"{len(PART):x}\r\n".encode()
    + PART
    + b"\r\n"
)
METADATA = b'{"name": "m", "inputs": [{"name": "x", "datatype": "INT32", "shape": [1]}]}'
DESCRIBED = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (
    len(METADATA),
    METADATA,
)


def test_a_stream_is_asked_for_again_until_a_part_has_come():
    server = Scripted([DESCRIBED], [BUSY], [BUSY], [CUT])
    with Client(server.url) as client:
        parts = client.stream("m", [1])
        assert next(parts)["y"][0] == 7
        with pytest.raises(ConnectionFailed):
            next(parts)
    assert len(server.requests) == 4


def test_without_retries_a_busy_server_is_asked_once():
    server = Scripted([DESCRIBED], [BUSY])
    with Client(server.url, retries=0) as client, pytest.raises(Unavailable):
        next(client.stream("m", [1]))
    assert len(server.requests) == 2


@pytest.mark.parametrize("size", [1, 3, 17])
def test_events_in_pieces_of_any_size(size):
    content = b": comment\r\n\r\nevent: ping\n" + PART + PART.replace(b"\n", b"\r\n") + b"data: {"
    reader = EventReader(Operation("ModelStreamInfer", "m"))
    parts = [
        part for at in range(0, len(content), size) for part in reader.feed(content[at : at + size])
    ]
    assert [int(part["y"][0]) for part in parts] == [7, 7]


@pytest.mark.parametrize("data", [b"{", b"[]", b'{"outputs": 3}', b'{"outputs": [{"name": "y"}]}'])
def test_an_event_that_cannot_be_read_is_the_clients_error(data):
    with pytest.raises(ClientError, match="cannot be read"):
        list(EventReader(Operation("ModelStreamInfer", "m")).feed(b"data: " + data + b"\n\n"))


def test_a_model_that_does_not_stream_answers_in_one_part(url):
    with Client(url) as client:
        assert [part.text for part in client.stream("echo", ["one"])] == ["ONE"]


def test_generate_yields_texts(url):
    with Client(url) as client:
        assert list(client.generate("story", "once upon a time")) == [
            "once ",
            "upon ",
            "a ",
            "time ",
        ]

    async def ask():
        async with AsyncClient(url) as client:
            return [text async for text in client.generate("story", "once upon")]

    assert asyncio.run(ask()) == ["once ", "upon "]


def test_generate_raises_for_a_model_without_texts(url):
    with Client(url) as client, pytest.raises(ClientError, match="BYTES outputs of 1"):
        list(client.stream("counter", [[1]], outputs=["number"])).pop().text  # noqa: B018


def test_a_kept_connection_serves_after_a_stream(server):
    with Client(server.url) as client:
        for _ in range(3):
            assert len(list(client.stream("counter", [[2]]))) == 2
            assert client.infer("echo", ["x"])["text_output"][0] == b"X"


def test_progress_of_an_upload(url):
    told = []
    picture = "x" * (3 << 20)
    with Client(url) as client:
        client.infer("echo", [picture], progress=lambda sent, total: told.append((sent, total)))
    if url.startswith("grpc"):
        assert told == []
        return
    total = told[-1][1]
    assert [sent for sent, _ in told] == sorted({sent for sent, _ in told})
    assert told[-1] == (total, total) and len(told) >= 3 and total > 3 << 20


def test_unknown_model_raises(url, ask):
    with Client(url) as client, pytest.raises(ClientError, match="nothing"):
        list(client.stream("nothing", {"x": np.zeros((1, 1))}))


PAIRS = "inputs: [{name: x, datatype: %s, shape: [-1, 2]}]\noutputs: [{name: y, datatype: %s, shape: [-1, 2]}]\n"


def test_stream_uses_the_declarations_of_a_reloaded_model(tmp_path):
    handler = "def inference(x):\n    return x\n"
    folder = write_model(tmp_path, "same", handler, PAIRS % ("FP32", "FP32"))
    with (
        Server(tmp_path) as server,
        Client(server.url) as control,
        Client(f"grpc://{server.grpc}") as client,
    ):
        assert next(client.stream("same", [[1, 2]]))["y"].dtype == np.float32
        (folder / "model.yaml").write_text(f"handler: handler.py\n{PAIRS % ('INT64', 'INT64')}")
        control.load("same")
        with pytest.raises(StreamFailed, match="expects INT64"):
            next(client.stream("same", [[1, 2]]))
        assert next(client.stream("same", [[1, 2]]))["y"].dtype == np.int64
