"""Hundreds of damaged requests over REST and gRPC: every request is answered 200 or 4xx, and nothing is left over."""

import gzip
import http.client
import json
import random
import struct
from collections import Counter
from contextlib import closing
from pathlib import Path

import grpc
import pytest

from ksrv.testing import Server
from tests.support.error_texts import check_text
from tests.support.examples import THOROUGH
from tests.support.images import files as image_files
from tests.support.models import write_double, write_echo, write_mean, write_model, write_text
from tests.support.processes import children
from tests.support.wire.grpc_calls import infer_request, row_request

OVER_HTTP = 10_000 if THOROUGH else 1_000
OVER_GRPC = 1_000 if THOROUGH else 300
PAGES_GROWN = 64 * 1024 * 1024 // 4096

PAIR = 'def inference(a, b): return {"sum": a + b}\n'
ALLOWED = {200, 400, 404, 413, 415}
X = {"name": "x", "shape": [1, 4], "datatype": "FP32"}
HEADER = "Inference-Header-Content-Length"


def write_models(root):
    for write in (write_double, write_echo, write_mean, write_text):
        write(root)
    pair = ", ".join(f"{{name: {name}, datatype: INT32, shape: [-1, 2]}}" for name in "ab")
    write_model(
        root,
        "pair",
        PAIR,
        f"inputs: [{pair}]\noutputs: [{{name: sum, datatype: INT32, shape: [-1, 2]}}]\n"
        "batching: {max_batch_size: 4}\n",
    )


def seeds():
    """Valid requests: model, headers and body."""
    row = struct.pack("<4f", 1, 2, 3, 4)
    files = [image_files.jpeg(9, 12), image_files.png(8, 8), image_files.jpeg(20, 5)]
    prefixed = b"".join(struct.pack("<I", len(file)) + file for file in files)
    image = {"name": "image", "shape": [3], "datatype": "BYTES"}
    sizes = ",".join(str(len(file)) for file in files)
    words = b"".join(struct.pack("<I", len(word)) + word for word in (b"a", b"", b"xyz"))
    text = {"name": "x", "shape": [3], "datatype": "BYTES"}
    a = {"name": "a", "shape": [2, 2], "datatype": "INT32"}
    b = {**a, "name": "b"}

    def made(model, inputs, blocks=b"", **fields):
        head = json.dumps({"inputs": inputs, **fields}).encode()
        return model, {HEADER: str(len(head))} if blocks else {}, head + blocks

    return [
        made("double", [{**X, "data": [1, 2.5, -3e3, 4]}], id="7", parameters={"n": 1, "s": "t"}),
        made("double", [{**X, "data": [[1, 2, 3, 4]]}], outputs=[{"name": "y"}]),
        made("double", [{**X, "parameters": {"binary_data_size": 16}}], row),
        made("double", [X], row, parameters={"binary_data_output": True}),
        made(
            "double",
            [{**X, "data": [4, 3, 2, 1]}],
            outputs=[{"name": "y", "parameters": {"classification": 2, "binary_data": False}}],
        ),
        ("double", {HEADER: "0"}, row),
        made("mean", [{**image, "parameters": {"binary_data_size": sizes}}], b"".join(files)),
        made("mean", [{**image, "parameters": {"binary_data_size": len(prefixed)}}], prefixed),
        made("mean", [{**image, "shape": [1]}], files[0]),
        ("mean", {HEADER: "0"}, files[0]),
        made("text", [{**text, "data": ["a", "é", ""]}]),
        made("text", [{**text, "parameters": {"binary_data_size": len(words)}}], words),
        made(
            "pair",
            [{**a, "data": [1, 2, 3, 4]}, {**b, "parameters": {"binary_data_size": 16}}],
            struct.pack("<4i", 5, 6, 7, 8),
        ),
        made("pair", [{**a, "data": [[1, 2], [3, 4]]}, {**b, "data": [[5, 6], [7, 8]]}]),
        ("double", {"Content-Encoding": "gzip"}, gzip.compress(made("double", [{**X, "data": [1, 2, 3, 4]}])[2])),
    ]  # fmt: skip


WORDS = [
    b"null", b"true", b"[]", b"{}", b"-1", b"0", b"1e400", b"NaN", b"4294967296", b"18446744073709551616",
    b'"x"', b'"\\ud800"', b"[[[[", b"]", b"}", b",", b":", b'"', b"\\", b"\x00", b"\xff", b'"shape"',
    b'"parameters":{"binary_data_size":"1,2"}', b'"shared_memory_region":"r"', b'"data":[1]', b"BF16",
    b"INT64", b"BYTES", b"triton_", b"2147483647", b"[1,4]", b"[0]", b"1.5",
]  # fmt: skip
LENGTHS = ["0", "1", "-1", "+5", "16", "999999", "99999999999999999999", "abc", "", "5,5", "0x5"]


def damage(chance, model, headers, body, others):
    """Return a request that was damaged in one to three places."""
    body = bytearray(body)
    headers = dict(headers)
    for _ in range(chance.randint(1, 3)):
        start = chance.randrange(len(body) + 1)
        end = min(len(body), start + chance.choice([1, 1, 2, 4, 16, 200]))
        match chance.randrange(10):
            case 0 if body:
                body[min(start, len(body) - 1)] ^= 1 << chance.randrange(8)
            case 1:
                body[start:end] = b""
            case 2:
                body[start:start] = body[start:end] * chance.choice([1, 2, 50])
            case 3:
                body[start:end] = chance.choice(WORDS)
            case 4:
                body[start:start] = chance.choice(WORDS)
            case 5:
                del body[start:]
            case 6:
                other = chance.choice(others)[2]
                body[start:] = other[chance.randrange(len(other)) :]
            case 7:
                headers[HEADER] = chance.choice([*LENGTHS, str(start), str(len(body))])
            case 8:
                headers["Content-Encoding"] = chance.choice(["gzip", "deflate", "br", "identity"])
            case _:
                digits = [at for at, byte in enumerate(body) if byte in b"0123456789"]
                if digits:
                    at = chance.choice(digits)
                    body[at : at + 1] = chance.choice(
                        [b"0", b"-1", b"9" * 9, b"9" * 30, b"1.5", b"e"]
                    )
    if not chance.randrange(20):
        model = chance.choice(["nope", "mean", "double/versions/7", "text", "pair"])
    return model, headers, bytes(body)


def resident_pages(pid):
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1])


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    root = tmp_path_factory.mktemp("mutated")
    write_models(root)
    return root


def check(status, answer, sent):
    assert status in ALLOWED, (status, answer[:300], sent)
    if status != 200:
        check_text(json.loads(answer)["error"])


@pytest.fixture(scope="module")
def server(repository):
    with Server(repository) as running:
        yield running


@pytest.fixture
def ask(server):
    with closing(http.client.HTTPConnection(server.http, timeout=60)) as connection:

        def ask(model, headers, body):
            connection.request("POST", f"/v2/models/{model}/infer", body, headers)
            response = connection.getresponse()
            return response.status, response.read()

        yield ask


def test_damaged_requests_are_answered_and_leave_nothing(server, ask):
    chance = random.Random(11)
    valid = seeds()
    workers = children(server.pid)
    counts = Counter()
    pages = 0
    for number in range(OVER_HTTP):
        sent = damage(chance, *chance.choice(valid), valid)
        status, answer = ask(*sent)
        check(status, answer, sent)
        counts[status] += 1
        if number == OVER_HTTP // 4:
            pages = resident_pages(workers[-1])
    assert counts[200] > 20 and counts[400] > 200 and counts[404] > 2 and counts[415] > 2
    assert resident_pages(workers[-1]) - pages < PAGES_GROWN
    for seed in valid:
        status, answer = ask(*seed)
        assert status == 200, (answer, seed)
    assert children(server.pid) == workers


def test_both_readings_of_a_damaged_header_agree(ask):
    """A JSON body is read the same with and without the header for the JSON's length."""
    chance = random.Random(9)
    valid = [seed for seed in seeds() if not seed[1]]
    for _ in range(200):
        model, _, body = damage(chance, *chance.choice(valid), valid)
        assert ask(model, {}, body) == ask(model, {HEADER: str(len(body))} if body else {}, body)


def test_damaged_messages_over_grpc(server):
    chance = random.Random(13)
    words = b"".join(struct.pack("<I", len(word)) + word for word in (b"a", b"", b"xyz"))
    file = image_files.jpeg(9, 12)
    made = [
        row_request("double", id="7"),
        infer_request("text", ("x", "BYTES", [3]), raw=[words]),
        infer_request("mean", ("image", "BYTES", [1]), raw=[struct.pack("<I", len(file)) + file]),
        infer_request("text", ("x", "BYTES", [3])),
    ]
    made[3].inputs[0].contents.bytes_contents.extend([b"a", b"", b"xyz"])
    valid = [("", {}, one.SerializeToString()) for one in made]
    codes = set()
    workers = children(server.pid)
    with grpc.insecure_channel(server.grpc) as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        for _ in range(OVER_GRPC):
            _, _, message = damage(chance, *chance.choice(valid), valid)
            code, text = grpc.StatusCode.OK, ""
            try:
                infer(message, timeout=60)
            except grpc.RpcError as error:
                code, text = error.code(), error.details()
            assert code.name in ("OK", "INVALID_ARGUMENT", "NOT_FOUND"), (text, message)
            if text:
                check_text(text)
            codes.add(code.name)
        assert infer(valid[0][2])
    assert codes == {"OK", "INVALID_ARGUMENT", "NOT_FOUND"}
    assert children(server.pid) == workers
