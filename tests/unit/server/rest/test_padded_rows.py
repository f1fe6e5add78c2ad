"""Padded rows on the fast path are answered without Python's parsers, with the same bytes."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ksrv.server.rest.fast_path import FastPath
from tests.support.native.fast_path import (
    ask,
    ask_both,
    json_message,
    message,
    opened,
    opened_grpc,
    serving,
)
from tests.support.wire.grpc_calls import infer_request, stub_infer

HANDLER = """
import numpy as np
from ksrv import BaseHandler

class Padded(BaseHandler):
    def inference(self, x, ids, mask):
        batch = self.context.batch
        assert x.shape[:2] == ids.shape == mask.shape, (x.shape, ids.shape, mask.shape)
        assert (x[mask == 0] == 0.5).all() and (ids[mask == 0] == -3).all()
        if self.context.parameters.get("reads"):
            assert batch.lengths["x"].tolist() == (ids != -3).sum(axis=1).tolist()
        return {
            "x": x * 2,
            "sum": (ids * mask).sum(axis=1),
            "pairs": ids[:, :, None] + ids[:, None, :],
            "rows": np.full((len(x), 2), [len(x), x.shape[1]]),
        }
"""
YAML = """
handler: handler.py
batching: {max_batch_size: 8, max_delay_ms: 5}
inputs:
  - {name: x, datatype: FP32, shape: [-1, x, 2], pad: {value: 0.5, multiple: 4, mask: mask}}
  - {name: ids, datatype: INT64, shape: [-1, x], pad: {value: -3}}
  - {name: mask, datatype: INT64, shape: [-1, -1]}
outputs:
  - {name: x, datatype: FP32, shape: [-1, x, 2]}
  - {name: sum, datatype: INT64, shape: [-1]}
  - {name: pairs, datatype: INT64, shape: [-1, x, x]}
  - {name: rows, datatype: INT64, shape: [-1, 2]}
"""
MODELS = {
    "padded": "",
    "reads": "parameters: {reads: true}\n",
    "separate": "executor: process\n",
}


@pytest.fixture(scope="module", params=MODELS)
def ways(request, tmp_path_factory):
    root: Path = tmp_path_factory.mktemp("padded")
    name = request.param
    with (
        serving(root / name, HANDLER, YAML + MODELS[name]) as engine,
        opened(engine) as fast,
        opened(engine, endpoints=False) as general,
    ):
        yield name, fast, general


def arrays(length, rows=1, mask=False):
    random = np.random.default_rng(length + 100 * rows)
    made = {
        "x": random.random((rows, length, 2), np.float32),
        "ids": random.integers(0, 99, (rows, length)),
    }
    return made | ({"mask": np.ones((rows, length), np.int64)} if mask else {})


def wanted(given):
    ids = given["ids"]
    return (
        (given["x"] * 2).tobytes()
        + ids.sum(axis=1).tobytes()
        + (ids[:, :, None] + ids[:, None, :]).tobytes()
    )


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 13, 150])
def test_a_request_needs_no_python_and_gets_the_same_bytes(ways, length, rows, mask):
    name, fast, general = ways
    given_arrays = arrays(length, rows, mask)
    assert ask_both(fast, general, message(name, given_arrays)) == 1
    head, body = ask(fast[1], message(name, given_arrays))
    assert head.startswith(b"HTTP/1.1 200")
    assert wanted(given_arrays) in body
    shapes = {one["name"]: one["shape"] for one in outputs_of(head, body)}
    assert shapes["x"] == [rows, length, 2] and shapes["pairs"] == [rows, length, length]


def outputs_of(head, body):
    length = next(
        int(line.partition(b":")[2])
        for line in head.lower().split(b"\r\n")
        if line.startswith(b"inference-header-content-length")
    )
    return json.loads(body[:length])["outputs"]


def test_the_lengths_of_rows_need_no_request_of_python(ways, monkeypatch):
    name, (_, address), _ = ways
    made = []
    monkeypatch.setattr(FastPath, "fast_request", lambda *given: made.append(given))
    head, _ = ask(address, message(name, arrays(5, 2)))
    assert head.startswith(b"HTTP/1.1 200") and not made


def test_numbers_in_json_need_no_python_either(ways):
    name, fast, general = ways
    inputs = {
        "ids": ("INT64", [2, 3], "[1, 2, 3, 4, 5, 6]"),
        "x": ("FP32", [2, 3, 2], str([0.25 * n for n in range(12)])),
    }
    assert ask_both(fast, general, json_message(name, inputs)) == 1


def test_a_part_of_the_outputs_is_cut_back_too(ways):
    name, fast, general = ways
    outputs = [{"name": "pairs"}, {"name": "sum", "parameters": {"binary_data": False}}]
    assert ask_both(fast, general, message(name, arrays(5, 2), outputs=outputs)) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"ids": np.zeros((1, 4), np.int64)},
        {"mask": np.zeros((1, 4), np.int64)},
        {"x": np.zeros((1, 5, 3), np.float32)},
        {"ids": np.zeros((2, 5), np.int64)},
        {"x": np.zeros((1, 5, 2), np.float64)},
        {"other": np.zeros((1, 5), np.int64)},
    ],
)
def test_invalid_request_is_reported_by_the_general_path(ways, wrong):
    name, fast, general = ways
    data = message(name, arrays(5) | wrong)
    assert ask_both(fast, general, data) == 0
    assert ask(fast[1], data)[0].startswith(b"HTTP/1.1 400")


MASKED = """
from ksrv import BaseHandler

class Masked(BaseHandler):
    def inference(self, ids, mask):
        return {"ids": ids * 3, "sum": (ids * mask).sum(axis=1)}
"""
MASKED_YAML = """
handler: handler.py
inputs:
  - {name: ids, datatype: INT64, shape: [-1, -1], pad: {value: 9, multiple: 8, mask: mask}}
  - {name: mask, datatype: BOOL, shape: [-1, -1]}
outputs:
  - {name: ids, datatype: INT64, shape: [-1, ids]}
  - {name: sum, datatype: INT64, shape: [-1]}
"""


EMPTY = """
import numpy as np
from ksrv import BaseHandler

class Empty(BaseHandler):
    def inference(self, x):
        wide = self.context.parameters["wide"]
        return {"none": np.zeros((len(x), wide, x.shape[1], 0), np.float32)}
"""
EMPTY_YAML = """
handler: handler.py
inputs: [{name: x, datatype: FP32, shape: [-1, x], pad: {multiple: 4, exact: true}}]
outputs: [{name: none, datatype: FP32, shape: [-1, -1, x, -1]}]
"""


@pytest.mark.parametrize(("executor", "wide"), [("inline", 1 << 40), ("process", 1 << 30)])
def test_an_output_without_values_is_cut_back_at_once(tmp_path, executor, wide):
    """Looping over its dimensions would take hours."""
    yaml = EMPTY_YAML + f"executor: {executor}\nparameters: {{wide: {wide}}}\n"
    with serving(tmp_path / "empty", EMPTY, yaml) as engine, opened(engine) as (_, address):
        head, body = ask(address, message("empty", {"x": np.zeros((2, 3), np.float32)}))
    assert head.startswith(b"HTTP/1.1 200"), body
    assert [one["shape"] for one in outputs_of(head, body)] == [[2, wide, 3, 0]]


def test_long_rows_use_large_slots_of_the_ring(tmp_path, monkeypatch):
    """Two rows of 20,000 numbers do not fit a slot of the ring, but the answers do."""
    sums = MASKED.replace('"ids": ids * 3, ', "")
    ids_out = "  - {name: ids, datatype: INT64, shape: [-1, ids]}\n"
    yaml = MASKED_YAML.replace(ids_out, "")
    yaml += "executor: process\nbatching: {max_batch_size: 8, max_delay_ms: 5}\n"
    made = []
    monkeypatch.setattr(FastPath, "fast_request", lambda *given: made.append(given))
    with serving(tmp_path / "masked", sums, yaml) as engine, opened(engine) as (_, address):

        def one(length):
            ids = arrays(length, 2)["ids"]
            data = message("masked", {"ids": ids}, outputs=[{"name": "sum"}])
            head, body = ask(address, data)
            assert head.startswith(b"HTTP/1.1 200"), body
            assert body.endswith(ids.sum(axis=1).tobytes())

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(one, [19_998, 19_999, 20_001, 20_007] * 5))
    assert not made


def test_calls_of_grpc_need_no_python_either(tmp_path):
    ids = arrays(5, 2)["ids"]
    with (
        serving(tmp_path / "masked", MASKED, MASKED_YAML) as engine,
        opened_grpc(engine) as (server, address),
        grpc.insecure_channel(address) as channel,
    ):
        asked = infer_request("masked", ("ids", "INT64", ids.shape), raw=[ids.tobytes()])
        answer = stub_infer(channel)(asked, timeout=60)
        assert [list(one.shape) for one in answer.outputs] == [[2, 5], [2]]
        given_back = b"".join(answer.raw_output_contents)
        assert given_back == (ids * 3).tobytes() + ids.sum(axis=1).tobytes()
        assert server._core.counters()["fast_path"] == 1


def test_empty_rows_and_missing_inputs_take_the_general_path(ways):
    name, fast, general = ways
    assert ask_both(fast, general, message(name, arrays(0))) == 0
    missing = arrays(4)
    del missing["ids"]
    assert ask_both(fast, general, message(name, missing)) == 0


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    many=st.lists(
        st.tuples(
            st.one_of(st.integers(0, 30), st.integers(0, 200)),
            st.integers(1, 3),
            st.booleans(),
            st.booleans(),
        ),
        min_size=2,
        max_size=10,
    )
)
def test_requests_of_both_ways_join(ways, many):
    name, (_, fast), (_, general) = ways

    def one(asked):
        length, rows, mask, is_fast = asked
        given_arrays = arrays(length, rows, mask)
        head, body = ask(fast if is_fast else general, message(name, given_arrays))
        assert head.startswith(b"HTTP/1.1 200"), body
        assert wanted(given_arrays) in body

    with ThreadPoolExecutor(len(many)) as pool:
        list(pool.map(one, many))
