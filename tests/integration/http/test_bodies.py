"""How bodies arrive and answers are sent: encodings, chunks, limits, large answers."""

import gzip
import json
import zlib

import numpy as np
import pytest
import requests

from ksrv.testing import Server
from tests.support.wire.http_reader import double_body, infer_head, read_answer

MIB = 1024 * 1024
HEADER_LENGTH = "Inference-Header-Content-Length"


def echo_parts(values: np.ndarray) -> tuple[bytes, bytes]:
    entry = {
        "name": "x",
        "datatype": "FP32",
        "shape": list(values.shape),
        "parameters": {"binary_data_size": values.nbytes},
    }
    header = {"inputs": [entry], "parameters": {"binary_data_output": True}}
    return json.dumps(header).encode(), values.tobytes()


def check_echo(answer: requests.Response, values: np.ndarray) -> None:
    assert answer.status_code == 200, answer.text
    assert answer.headers["Content-Type"] == "application/octet-stream"
    length = int(answer.headers[HEADER_LENGTH])
    header = json.loads(answer.content[:length])
    assert header["outputs"][0]["parameters"]["binary_data_size"] == values.nbytes
    assert answer.content[length:] == values.tobytes()


@pytest.fixture(scope="module")
def url(server):
    return f"{server.url}/v2/models/echo/infer"


@pytest.fixture(scope="module")
def small(repository):
    """A server with low limits."""
    limits = {"body": 10_000, "chunks": 100, "head": 2000, "inflate_ratio": 50}
    with Server(repository, limits=limits) as running:
        yield running


@pytest.mark.parametrize("size", [1, 300, 4000, MIB // 4 - 30, MIB // 4, 3 * MIB])
def test_tensors_of_every_size_round_trip(url, size):
    values = np.arange(size, dtype=np.float32).reshape(1, size)
    header, block = echo_parts(values)
    answer = requests.post(url, data=header + block, headers={HEADER_LENGTH: str(len(header))})
    assert answer.headers["Content-Length"] == str(len(answer.content))
    check_echo(answer, values)


def gzip_members(body):
    return gzip.compress(body[:1000]) + gzip.compress(body[1000:])


@pytest.mark.parametrize(
    ("encoding", "compress"),
    [("gzip", gzip.compress), ("gzip", gzip_members), ("deflate", zlib.compress)],
)
@pytest.mark.parametrize("chunked", [False, True])
def test_compressed_bodies(url, encoding, compress, chunked):
    values = np.random.default_rng(1).random((1, 50_000), dtype=np.float32)
    header, block = echo_parts(values)
    body = compress(header + block)
    headers = {HEADER_LENGTH: str(len(header)), "Content-Encoding": encoding}
    check_echo(requests.post(url, data=iter([body]) if chunked else body, headers=headers), values)


@pytest.mark.parametrize(
    "content_type", [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]
)
def test_content_type_is_ignored(url, content_type):
    values = np.ones((1, 4), np.float32)
    header, block = echo_parts(values)
    headers = {HEADER_LENGTH: str(len(header)), "Content-Type": content_type}
    check_echo(requests.post(url, data=header + block, headers=headers), values)


def test_body_at_the_limit_passes_and_a_larger_body_gets_413_unread(small, connect):
    url = f"{small.url}/v2/models/double/infer"
    body = double_body()
    answer = requests.post(url, data=body + b" " * (10_000 - len(body)))
    assert answer.status_code == 200, answer.text
    connection = connect(small.http)
    connection.sendall(infer_head("double", 10_001))
    refused = read_answer(connection)
    assert refused.status == 413
    assert (
        "10001" in refused.error and "10000" in refused.error and "--limits-body" in refused.error
    )


def test_chunked_bodies_have_the_same_limits(small):
    url = f"{small.url}/v2/models/double/infer"
    body = double_body()
    body += b" " * (10_000 - len(body))
    assert requests.post(url, data=iter([body])).status_code == 200
    assert requests.post(url, data=iter([body, b" "])).status_code == 413
    hundred = (body[start : start + 100] for start in range(0, 10_000, 100))
    assert requests.post(url, data=hundred).status_code == 200


def test_one_chunk_too_many_is_400_and_the_end_of_the_connection(small, connect):
    connection = connect(small.http)
    head = b"POST /v2/models/double/infer HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    connection.sendall(head + b"1\r\n \r\n" * 101 + b"0\r\n\r\n")
    answer = read_answer(connection)
    assert answer.status == 400
    assert "--limits-chunks" in answer.error
    assert connection.recv(10) == b""


def test_a_head_above_the_limit_is_431(small):
    fits = requests.get(f"{small.url}/v2", headers={"X-A": "b" * 1500})
    assert fits.status_code == 200
    refused = requests.get(f"{small.url}/v2", headers={"X-A": "b" * 1000, "X-B": "c" * 1000})
    assert refused.status_code == 431
    assert "--limits-head" in refused.json()["error"]


def test_answers_are_compressed_only_with_the_setting(url, repository):
    values = np.zeros((1, 5000), np.float32)
    header, block = echo_parts(values)
    headers = {HEADER_LENGTH: str(len(header)), "Accept-Encoding": "gzip"}
    plain = requests.post(url, data=header + block, headers=headers)
    assert "Content-Encoding" not in plain.headers
    with Server(repository, compress_responses=True) as server:
        url = f"{server.url}/v2/models/echo/infer"
        for accept, encoding in [("gzip", "gzip"), ("deflate", "deflate"), ("br", None)]:
            answer = requests.post(
                url, data=header + block, headers=headers | {"Accept-Encoding": accept}
            )
            assert answer.headers.get("Content-Encoding") == encoding
            check_echo(answer, values)
