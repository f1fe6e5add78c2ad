"""Chunked infer requests: small, simple requests on the fast path, all others on the general path."""

import contextlib
import socket
import time

import numpy as np
import pytest

from ksrv._native.memory.memory_budget import PROCESS
from ksrv.testing import Server
from tests.support.models import write_double
from tests.support.native.fast_path import (
    ONE,
    ONE_YAML,
    chunked,
    message,
    opened,
    row,
    serving,
    stripped,
)
from tests.support.wait_until import wait_until
from tests.support.wire.http_reader import double_body, open_connection, read_all, read_message

SLOWLY = b"TE: trailers\r\n"
WIDE_YAML = ONE_YAML.replace("[-1, 4]", "[-1, 8000]")


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chunked")
    with serving(folder / "one", ONE, ONE_YAML) as engine:
        yield engine


X = {"x": row(1, 2, 3, 4)}


@pytest.mark.parametrize("sizes", [(), (1,), (1, 2, 3, 4, 5), (150,), (180, 10)])
def test_chunked_request_equals_the_request_with_a_length(engine, sizes):
    with opened(engine) as (http_server, address), socket.create_connection(address, 20) as client:
        client.sendall(message("one", X))
        expected = read_message(client)
        client.sendall(chunked(message("one", X), *sizes))
        found = read_message(client)
        assert (stripped(found[0]), found[1]) == (stripped(expected[0]), expected[1])
        assert http_server.counters()["fast_path"] == 2


def test_a_body_of_many_pieces_is_counted_and_given_back(tmp_path):
    with (
        serving(tmp_path / "one", ONE, WIDE_YAML) as engine,
        opened(engine) as (http_server, address),
        socket.create_connection(address, 20) as client,
    ):
        x = np.arange(16_000, dtype="<f4").reshape(2, 8_000) + 1
        data = chunked(message("one", {"x": x}), *[999] * 60)
        before = PROCESS.held
        for _ in range(3):
            client.sendall(data[:40_000])
            wait_until(lambda: PROCESS.held - before >= 20_000)
            client.sendall(data[40_000:])
            body = read_message(client)[1]
            assert body.endswith(x.tobytes())
            wait_until(lambda: PROCESS.held == before)
        assert http_server.counters()["fast_path"] == 3


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    write_double(folder)
    with Server(folder, limits={"body": 4 << 20, "chunks": 50}) as server:
        yield server


JSON = double_body()
TEXT = b"POST /v2/models/double/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n" + JSON

REQUESTS = {
    "JSON": chunked(TEXT),
    "binary": chunked(message("double", X), 20),
    "an unknown model": chunked(TEXT.replace(b"double", b"nope")),
    "not JSON": chunked(TEXT[:-5]),
    "an extension": chunked(TEXT)
    .replace(b"\r\n\r\n", b"\r\n\r\n", 1)
    .replace(b"5c\r\n", b"5c;a=b\r\n"),
    "a trailer": chunked(TEXT, end=b"0\r\nX-Sum: 1\r\n\r\n"),
    "an empty body": chunked(TEXT[: -len(JSON)]),
    "a header longer than the body": chunked(message("double", X), fields=b"").replace(
        b"Inference-Header-Content-Length: ", b"Inference-Header-Content-Length: 9"
    ),
    "too many chunks": chunked(TEXT, *[1] * 60),
    "as many chunks as may be": chunked(TEXT, *[1] * 49),
    "a little large": chunked(TEXT + b" " * 64_000, 4_096),
    "more than is gathered": chunked(TEXT + b" " * 70_000, 4_096),
    "a bad size": chunked(TEXT, end=b"xyz\r\n\r\n"),
    "a bad line end": chunked(TEXT).replace(b"]}\r\n0", b"]}\n0"),
    "above the limit": chunked(TEXT + b" " * (5 << 20), 1 << 20),
    "large": chunked(TEXT + b" " * (3 << 20), 1 << 16),
}


@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
def test_both_paths_answer_equally(server, request_):
    answers = []
    for way in (b"", SLOWLY):
        with open_connection(server.http) as client:
            # it may be refused before it was sent completely
            with contextlib.suppress(ConnectionError):
                client.sendall(
                    request_.replace(b"Host: x\r\n", b"Host: x\r\nConnection: close\r\n" + way)
                )
            try:
                answers.append(stripped(read_all(client)))
            except ConnectionResetError:
                answers.append(b"")
    status = [answer[:13] for answer in answers]
    assert status[0] == status[1]
    assert answers[0] == answers[1]


def test_a_steady_chunked_upload_needs_no_more_than_the_least_rate(tmp_path):
    write_double(tmp_path)
    settings = {"transfer_grace": 0.5, "transfer_timeout": 5, "min_transfer_rate": 4096}
    data = chunked(TEXT + b" " * 50_000, 1000)
    with Server(tmp_path, **settings) as server, open_connection(server.http) as client:
        for at in range(0, len(data), 2_000):
            client.sendall(data[at : at + 2_000])
            time.sleep(0.1)
        assert read_message(client)[0].startswith(b"HTTP/1.1 200 OK")
