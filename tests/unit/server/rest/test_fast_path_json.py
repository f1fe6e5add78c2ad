"""Numbers in JSON on the fast path get the same answers as on the general path, byte for byte.

Each request is sent twice: to an HTTP server with endpoints, and to a server where Python parses and renders every
request.
"""

import itertools
import json
import random
import socket
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from ksrv._native.memory.memory_budget import PROCESS
from ksrv.server.rest.fast_path import FAST_PATH_JSON
from tests.support.native.fast_path import (
    MODELS,
    Hold,
    ask_both,
    chunked,
    json_message,
    message,
    opened,
    posted,
    row,
    started,
    status,
    stripped,
)
from tests.support.wait_until import wait_until
from tests.support.wire.http_reader import read_message

USED = ("one", "pair", "joined", "separate", "wide", "open", "every", "every-joined")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def engine(models):
    with started(models, {name: MODELS[name] for name in USED}) as engine:
        yield engine


@pytest.fixture(scope="module", params=[False, True], ids=["NaN is null", "NaN is a literal"])
def nan_literals(request):
    return request.param


@pytest.fixture(scope="module")
def fast(engine, nan_literals):
    with opened(engine, nan_literals=nan_literals) as http_server:
        yield http_server


@pytest.fixture(scope="module")
def general(engine, nan_literals):
    with opened(engine, endpoints=False, nan_literals=nan_literals) as http_server:
        yield http_server


def one(numbers="[1, 2.5, -3e2, 4]", shape=(1, 4), **more):
    return json_message("one", {"x": ("FP32", shape, numbers)}, **more)


def pair(model="pair", **more):
    a, b = "[[0.1, 0.2, 0.3, 0.4]]", "[1e10, 2e-10, 3e38, 4]"
    return json_message(model, {"a": ("FP32", [1, 4], a), "b": ("FP32", [1, 4], b)}, **more)


def every(bools="[true, false]", ints="[1]", reals="[0.5, 1]", rows=1, **more):
    inputs = {
        "bools": ("BOOL", [rows, 2], bools),
        "ints": ("INT64", [rows], ints),
        "reals": ("FP64", [rows, 1, 2], reals),
    }
    names = ("bools", "ints", "reals", "bytes")
    more.setdefault("outputs", [{"name": name} for name in names])
    return json_message(more.pop("model", "every"), inputs, **more)


def binary(name):
    return {"name": name, "parameters": {"binary_data": True}}


MIXED = json.dumps(
    {
        "inputs": [
            {"name": "ints", "datatype": "INT64", "shape": [1], "data": [7]},
            {"name": "bools", "datatype": "BOOL", "shape": [1, 2]},
            {"name": "reals", "datatype": "FP64", "shape": [1, 1, 2], "data": [[[1, 2]]]},
        ],
        "outputs": [{"name": "bools"}, {"name": "ints"}],
    }
)


def mixed(values=b"\1\0"):
    return posted("every", MIXED.encode(), values)


WHOLE = one().partition(b"\r\n\r\n")[2].decode()
LARGEST = "[" + ",".join(["-1.2345678e-30"] * 4) + "]"
PLAIN = {
    "flat numbers": one(),
    "nested numbers": one("[[1, 2, 3, 4]]"),
    "ragged numbers": one("[[1], [[2, 3]], 4]"),
    "blanks": one(" [\r\n1 ,\t2, 3 , 4 ] "),
    "long numbers": one(LARGEST),
    "several rows": one("[1,2,3,4,5,6,7,8]", [2, 4]),
    "a NaN": one("[1, NaN, 3, 4]"),
    "an infinity": one("[1, 2, -Infinity, Infinity]"),
    "an id": one(id="request 42"),
    "an id beyond ASCII": one(id="größe \x7f"),
    "a null id": one(id=None),
    "null outputs": one(outputs=None),
    "a timeout and a priority": one(parameters={"timeout": 10**7, "priority": 3}),
    "binary outputs": one(parameters={"binary_data_output": True}),
    "a binary output by name": one(outputs=[binary("y")]),
    "JSON in front of nothing": one(fields="Accept: */*\r\n"),
    "two inputs": pair(),
    "one output of two": pair(outputs=[{"name": "rows"}]),
    "outputs in both forms": pair(outputs=[binary("sum"), {"name": "rows"}]),
    "outputs in another order": pair(outputs=[{"name": "rows"}, binary("sum")]),
    "a model that joins": json_message("joined", {"x": ("FP32", [1, 4], "[1,2,3,4]")}),
    "a handler's process": json_message("separate", {"x": ("FP32", [1, 4], "[1,2,3,4]")}),
    "undeclared outputs": json_message("open", {"x": ("FP32", [1, 4], "[1,2,3,4]")}),
    "undeclared texts": json_message("open", {"x": ("FP32", [1, 4], "[-1,2,3,4]")}),
    "a large answer": json_message("wide", {"x": ("FP32", [1, 4096], str([0.5] * 4096))}),
    "a larger answer": json_message("wide", {"x": ("FP32", [2, 4096], str([1] * 8192))}),
    "every datatype": every(),
    "integers at their bounds": every(ints="[-9223372036854775808, 9223372036854775807]",
                                      bools="[[true,false],[false,true]]", reals="[1,2,3,4]", rows=2),
    "reals at their bounds": every(reals="[1.7976931348623157e308, 5e-324]"),
    "an output that JSON does not carry": every(outputs=[{"name": "half"}]),
    "that output in binary": every(outputs=[binary("half"), {"name": "bools"}]),
    "all outputs": every(outputs=[]),
    "all outputs in binary": every(outputs=[], parameters={"binary_data_output": True}),
    "values that are not finite": every(reals="[0, 1]", outputs=[{"name": "small"}]),
    "JSON and binary inputs": mixed(),
    "a header of the whole body": one(fields=f"Inference-Header-Content-Length: {len(WHOLE)}\r\n"),
    "chunks": chunked(one(), 7, 40),
    "binary inputs": message("one", {"x": row(1, 2, 3, 4)}, parameters={}),
    "a fault": one("[-1, 0, 0, 0]"),
    "an error": one("[-2, 0, 0, 0]"),
    "a header": one("[-4, 0, 0, 0]"),
    "a parameter": one("[-5, 0, 0, 0]"),
    "a look at the request": one("[-6, 0, 0, 0]", id="four", fields="X-Mine: abc\r\n"),
    "a failed row": one("[-7, 0, 0, 0]"),
}  # fmt: skip

GENERAL = {
    "too few numbers": one("[1, 2, 3]"),
    "no numbers": one("[]"),
    "no array": one("1"),
    "a number beyond FP32": one("[1e39, 2, 3, 4]"),
    "a number beyond all": one("[1e400, 2, 3, 4]"),
    "no rows": one("[]", [0, 4]),
    "a negative dimension": one("[]", [-1, 4]),
    "a huge shape": one("[1]", [2147483647, 4]),
    "too many rows": json_message("joined", {"x": ("FP32", [9, 4], str([0] * 36))}),
    "an unknown input": json_message("one", {"z": ("FP32", [1, 4], "[1,2,3,4]")}),
    "a wrong datatype": json_message("one", {"x": ("FP64", [1, 4], "[1,2,3,4]")}),
    "a datatype without JSON": json_message("one", {"x": ("FP16", [1, 4], "[1,2,3,4]")}),
    "a wrong shape": one("[1,2,3,4]", [4]),
    "an unknown output": one(outputs=[{"name": "z"}]),
    "an output twice": one(outputs=[{"name": "y"}, {"name": "y"}]),
    "classes": one(outputs=[{"name": "y", "parameters": {"classification": 2}}]),
    "a parameter": one(parameters={"mine": 1}),
    "a priority beyond 32 bits": one(parameters={"priority": 2**32}),
    "an escaped id": one(text=WHOLE[:-1] + ', "id": "\\u0061"}'),
    "much JSON": one(text=WHOLE + " " * FAST_PATH_JSON),
    "bytes behind the JSON": one(text=WHOLE + "x"),
    "no JSON": one(text="{"),
    "an empty object": one(text="{}"),
    "a BOOL that is neither": mixed(b"\1\2"),
    "too few bytes": mixed(b"\1"),
    "a shared region": one(text=json.dumps({"inputs": [{
        "name": "x", "datatype": "FP32", "shape": [1, 4],
        "parameters": {"shared_memory_region": "r", "shared_memory_byte_size": 16},
    }]})),
}  # fmt: skip


@pytest.mark.parametrize("data", PLAIN.values(), ids=PLAIN)
def test_plain_requests_are_answered_as_all_others_are(fast, general, data):
    assert ask_both(fast, general, data) == 1


@pytest.mark.parametrize("data", GENERAL.values(), ids=GENERAL)
def test_other_requests_go_the_general_way(fast, general, data):
    assert ask_both(fast, general, data) == 0
    wait_until(lambda: PROCESS.held == 0)


def test_any_truncation_and_any_wrong_byte_is_answered_alike(fast, general):
    body = every(ints="[-12]", reals="[1e-5, 2.5]").partition(b"\r\n\r\n")[2].decode()
    draw = random.Random(5)
    with (
        socket.create_connection(fast[1], 20) as here,
        socket.create_connection(general[1], 20) as there,
    ):
        for _ in range(400):
            at = draw.randrange(len(body))
            text = body[:at] if draw.random() < 0.2 else (
                body[:at] + draw.choice('0123456789.eE+-[]{}",:tfn x') + body[at + 1 :]
            )  # fmt: skip
            if not text:
                continue
            data = every(text=text)
            here.sendall(data)
            there.sendall(data)
            mine, theirs = read_message(here), read_message(there)
            assert (stripped(mine[0]), mine[1]) == (stripped(theirs[0]), theirs[1]), text


def test_reals_of_all_kinds_are_answered_alike(fast, general):
    draw = random.Random(6)
    with (
        socket.create_connection(fast[1], 20) as here,
        socket.create_connection(general[1], 20) as there,
    ):
        for _ in range(300):
            reals = [draw.uniform(-1, 1) * 10.0 ** draw.randint(-320, 300) for _ in range(2)]
            ints = str([draw.randint(-(2**63), 2**63 - 1)])
            data = every(ints=ints, reals=str(reals))
            here.sendall(data)
            there.sendall(data)
            mine, theirs = read_message(here), read_message(there)
            assert mine[1] == theirs[1]
            assert json.loads(mine[1])["outputs"][2]["data"] == reals


def test_requests_of_both_forms_share_batches(fast):
    """JSON and binary requests, with answers of both forms, in batches of one model."""
    _, address = fast
    problems = []
    forms = [*itertools.product((True, False), repeat=2)] * 2

    def run(number, sends_json, wants_json):
        with socket.create_connection(address, 20) as client:
            for turn in range(60):
                values = [1.0 + number, float(turn), number / 7, -0.5]
                more = {"parameters": {} if wants_json else {"binary_data_output": True}}
                if sends_json:
                    data = json_message("joined", {"x": ("FP32", [1, 4], str(values))}, **more)
                else:
                    data = message("joined", {"x": row(*values)}, **more)
                client.sendall(data)
                head, body, _ = read_message(client)
                wanted = np.array(values, "<f4")
                if wants_json:
                    got = np.array(json.loads(body)["outputs"][0]["data"], "<f4")
                else:
                    got = np.frombuffer(body[-16:], "<f4")
                if status(head) != 200 or got.tobytes() != wanted.tobytes():
                    problems.append((head, body, values))
                    return

    with ThreadPoolExecutor(len(forms)) as pool:
        list(pool.map(run, range(len(forms)), *zip(*forms, strict=True)))
    assert problems == []
    wait_until(lambda: PROCESS.held == 0)


def test_the_memory_of_numbers_is_counted_with_its_request(fast, models):
    with Hold(models / "one") as hold, socket.create_connection(fast[1], 20) as client:
        _, turn, _, _ = hold.x[0]
        data = one(f"[-3,{turn:.0f},0,0]")
        client.sendall(data)
        wait_until(lambda: hold.began)
        body = len(data.partition(b"\r\n\r\n")[2])
        assert body + 16 <= PROCESS.held < body + 16 + 64
    wait_until(lambda: PROCESS.held == 0)
