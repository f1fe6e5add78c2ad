"""Requests of different lengths join: padded, masked and cut back, over every protocol and in both executors."""

import threading
from concurrent.futures import ThreadPoolExecutor

import cv2
import numpy as np
import pytest
import requests
import tritonclient.grpc as triton_grpc
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ksrv.client import Client, InvalidRequest
from ksrv.testing import Server

HANDLER = """
from typing import TypedDict

import numpy as np

from ksrv import BaseHandler, Float32, Int64


class Answer(TypedDict):
    tokens: Int64["ids"]
    pooled: Int64
    pairs: Int64["ids", "ids"]
    seen: Int64[6]


def answer(ids, types, mask, batch):
    assert ids.shape == types.shape == mask.shape
    assert (ids[mask == 0] == -1).all() and (types[mask == 0] == 7).all()
    lengths = batch.lengths["ids"]
    assert lengths.tolist() == mask.sum(axis=1).tolist() or ids.shape[1] == 0, (lengths, mask)
    seen = np.zeros((len(ids), 6), np.int64)
    seen[:, 0] = len(ids)
    seen[:, 1] = ids.shape[1]
    seen[:, 2] = lengths
    seen[:, 3] = mask.sum(axis=1)
    seen[:, 4] = min(lengths)
    seen[:, 5] = [one.lengths["ids"] for one in batch.requests for _ in range(one.rows)]
    return {
        "tokens": ids * 2 + types,
        "pooled": (ids * mask).sum(axis=1),
        "pairs": ids[:, :, None] * ids[:, None, :],
        "seen": seen,
    }


class Encoder(BaseHandler):
    def handle(self, batch, context):
        return answer(batch["ids"], batch["types"], batch["mask"], batch)


class Captions(BaseHandler):
    def inference(self, image, ids):
        return {"tokens": ids + image.reshape(len(image), -1).max(axis=1)[:, None].astype("i8")}


class Frames(BaseHandler):
    def handle(self, batch, context):
        return {"lengths": batch.lengths["frames"], "ones": batch["mask"].sum(axis=1)}  # plain-english: keep


def hinted(
    ids: Int64["ids"].padded(value=-1, multiple=8, mask="mask"),
    types: Int64["ids"].padded(value=7),
    mask: Int64["ids"],
    batch,
) -> Answer:
    return answer(ids, types, mask, batch)
"""
TENSORS = """
inputs:
  - {name: ids, datatype: INT64, shape: [-1, -1], pad: {value: -1, multiple: 8, mask: mask}}
  - {name: types, datatype: INT64, shape: [-1, ids], pad: {value: 7}}
  - {name: mask, datatype: INT64, shape: [-1, -1]}
outputs:
  - {name: tokens, datatype: INT64, shape: [-1, ids]}
  - {name: pooled, datatype: INT64, shape: [-1]}
  - {name: pairs, datatype: INT64, shape: [-1, ids, ids]}
  - {name: seen, datatype: INT64, shape: [-1, 6]}
"""
BATCHING = "batching: {max_batch_size: 8, max_delay_ms: 20}\n"
MODELS = {
    "encoder": f"handler: handler.py:Encoder\n{BATCHING}{TENSORS}",
    "aside": f"handler: handler.py:Encoder\nexecutor: process\n{BATCHING}{TENSORS}",
    "hinted": f"handler: handler.py:hinted\n{BATCHING}",
    "alone": f"handler: handler.py:Encoder\n{TENSORS}",
}
FRAMES = """
handler: handler.py:Frames
inputs:
  - {name: x, datatype: FP32, shape: [-1, frames, -1], pad: {mask: mask}}
  - {name: mask, datatype: INT64, shape: [-1, frames]}
outputs:
  - {name: lengths, datatype: INT64, shape: [-1]}
  - {name: ones, datatype: INT64, shape: [-1]}  # plain-english: keep
"""
CAPTIONS = f"""
handler: handler.py:Captions
{BATCHING}
inputs:
  - {{name: image, datatype: UINT8, shape: [-1, 4, 4, 3]}}
  - {{name: ids, datatype: INT64, shape: [-1, -1], pad: {{exact: true}}}}
outputs:
  - {{name: tokens, datatype: INT64, shape: [-1, ids]}}
"""
JOINED = ["encoder", "aside", "hinted"]
WASTE = 0.25


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("padding")
    for name, yaml in (MODELS | {"captions": CAPTIONS, "frames": FRAMES}).items():
        (root / name).mkdir()
        (root / name / "handler.py").write_text(HANDLER)
        (root / name / "model.yaml").write_text(yaml)
    with Server(root, start_timeout=120) as server:
        yield server


def inputs_of(length, rows=1, seed=1):
    random = np.random.default_rng(length * 31 + rows + seed)
    ids = random.integers(0, 1000, (rows, length), np.int64)
    return {"ids": ids, "types": random.integers(0, 2, (rows, length), np.int64)}


def expected(inputs):
    ids = inputs["ids"]
    return {
        "tokens": ids * 2 + inputs["types"],
        "pooled": ids.sum(axis=1),
        "pairs": ids[:, :, None] * ids[:, None, :],
    }


def over_binary(server, model, inputs):
    with Client(server.url) as client:
        return client.infer(model, inputs)


def over_json(server, model, inputs):
    body = {
        "inputs": [
            {"name": name, "datatype": "INT64", "shape": one.shape, "data": one.ravel().tolist()}
            for name, one in inputs.items()
        ]
    }
    answer = requests.post(f"{server.url}/v2/models/{model}/infer", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return {
        one["name"]: np.array(one["data"], np.int64).reshape(one["shape"])
        for one in answer.json()["outputs"]
    }


def over_grpc(server, model, inputs):
    given = []
    for name, one in inputs.items():
        given.append(triton_grpc.InferInput(name, list(one.shape), "INT64"))
        given[-1].set_data_from_numpy(one)
    with triton_grpc.InferenceServerClient(server.grpc) as client:
        found = client.infer(model, given)
        return {name: found.as_numpy(name) for name in ("tokens", "pooled", "pairs", "seen")}


PROTOCOLS = {"binary": over_binary, "json": over_json, "grpc": over_grpc}


def check(inputs, outputs, model):
    for name, wanted in expected(inputs).items():
        np.testing.assert_array_equal(outputs[name], wanted)
    rows, length = inputs["ids"].shape
    for batch_rows, padded, own, ones, shortest, of_request in outputs["seen"].tolist():
        assert own == ones == of_request == length
        assert padded % 8 == 0 and padded >= length
        rounded = -(-shortest // 8) * 8
        assert padded == 0 or rounded >= padded * (1 - WASTE) - 1e-9
        assert batch_rows >= rows
        assert batch_rows == rows or model != "alone"
    return outputs["seen"][0, 0] if rows else 0


def at_once(server, model, send, many):
    """Send requests from as many threads at once; return the rows of the largest batch."""
    gate = threading.Barrier(len(many))

    def one(inputs):
        gate.wait()
        return check(inputs, send(server, model, inputs), model)

    with ThreadPoolExecutor(len(many)) as pool:
        return max(pool.map(one, many))


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("model", JOINED)
def test_requests_of_different_lengths_join(server, model, protocol):
    lengths = [25, 26, 27, 28, 29, 30, 31, 32]
    for _ in range(20):  # a busy machine may keep the requests of one try apart
        many = [inputs_of(length) for length in lengths]
        if at_once(server, model, PROTOCOLS[protocol], many) > 1:
            return
    pytest.fail("no two requests of different lengths were joined")


@pytest.mark.parametrize("model", MODELS)
@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    many=st.lists(
        st.tuples(
            st.one_of(st.integers(0, 80), st.integers(0, 600)),
            st.integers(1, 4),
            st.sampled_from(sorted(PROTOCOLS)),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_any_lengths_at_once_are_answered_as_if_alone(server, model, many):
    gate = threading.Barrier(len(many))

    def one(asked):
        length, rows, protocol = asked
        inputs = inputs_of(length, rows)
        gate.wait()
        check(inputs, PROTOCOLS[protocol](server, model, inputs), model)

    with ThreadPoolExecutor(len(many)) as pool:
        list(pool.map(one, many))


@pytest.mark.parametrize("model", MODELS)
def test_a_row_of_no_length_is_a_row(server, model):
    inputs = inputs_of(0)
    outputs = over_binary(server, model, inputs)
    assert outputs["tokens"].shape == (1, 0) and outputs["pairs"].shape == (1, 0, 0)
    assert outputs["seen"].tolist() == [[1, 0, 0, 0, 0, 0]]


@pytest.mark.parametrize("model", JOINED)
def test_a_row_of_huge_length_is_joined_with_none_that_is_short(server, model):
    many = [inputs_of(5) for _ in range(3)]
    huge = inputs_of(3000)
    gate = threading.Barrier(len(many) + 1)
    sizes = []

    def one(inputs):
        gate.wait()
        outputs = over_binary(server, model, inputs)
        check(inputs, outputs, model)
        sizes.append((inputs["ids"].shape[1], outputs["seen"][0, 1]))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(one, [*many, huge]))
    assert sorted(sizes) == [(5, 8), (5, 8), (5, 8), (3000, 3000)]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("model", JOINED)
def test_sent_mask_is_padded_with_zeros_and_joins_a_made_mask(server, model, protocol):
    with_mask = [
        inputs_of(length) | {"mask": np.ones((1, length), np.int64)} for length in (9, 11, 13)
    ]
    without = [inputs_of(length) for length in (10, 12, 14)]
    at_once(server, model, PROTOCOLS[protocol], with_mask + without)


@pytest.mark.parametrize("shape", [[1, 2**31 - 1, 0], [2**31 - 1, 1, 0], [2**31 - 1, 0, 5]])
def test_an_input_without_values_has_no_large_mask_made(server, shape):
    x = {"name": "x", "datatype": "FP32", "shape": shape, "data": []}
    answer = requests.post(f"{server.url}/v2/models/frames/infer", json={"inputs": [x]}, timeout=60)
    assert answer.status_code == 400
    assert "no values" in answer.json()["error"]


def test_an_input_without_values_has_its_mask(server):
    with Client(server.url) as client:
        found = client.infer("frames", {"x": np.zeros((2, 3, 0), np.float32)})
    assert found["lengths"].tolist() == found["ones"].tolist() == [3, 3]


@pytest.mark.parametrize("model", MODELS)
def test_lengths_that_disagree_within_a_row_are_refused(server, model):
    inputs = inputs_of(5) | {"types": np.zeros((1, 6), np.int64)}
    sentence = (
        "the rows of the input 'types' have the length 6, and rows of 'ids' have 5; they are padded together, so "
        "each row needs the same length 'ids'"
    )
    with Client(server.url) as client, pytest.raises(InvalidRequest) as caught:
        client.infer(model, inputs)
    assert sentence in str(caught.value)
    with pytest.raises(triton_grpc.InferenceServerException, match="padded together"):
        over_grpc(server, model, inputs)
    mask = inputs_of(5) | {"mask": np.ones((1, 4), np.int64)}
    with Client(server.url) as client, pytest.raises(InvalidRequest, match="padded together"):
        client.infer(model, mask)


def test_images_join_beside_rows_that_are_padded(server):
    def one(length):
        ids = inputs_of(length)["ids"]
        picture = np.full((4, 4, 3), length, np.uint8)
        image = cv2.imencode(".png", picture)[1].tobytes() if length % 2 else picture[None]
        given = np.array([image], object) if length % 2 else image
        with Client(server.url) as client:
            outputs = client.infer("captions", {"image": given, "ids": ids})
        np.testing.assert_array_equal(outputs["tokens"], ids + length)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, [9, 10, 11, 12, 13, 14, 15, 16] * 2))


def test_metadata_shows_optional_inputs_and_lengths(server):
    for model in MODELS:
        document = requests.get(f"{server.url}/v2/models/{model}", timeout=30).json()
        assert document["properties"]["mask.optional"] == "true"
        assert document["properties"]["ids.lengths"] == "-1,ids"
        assert document["properties"]["pairs.lengths"] == "-1,ids,ids"
        shapes = {one["name"]: one["shape"] for one in document["inputs"] + document["outputs"]}
        assert shapes["ids"] == shapes["mask"] == shapes["tokens"] == [-1, -1]
        assert shapes["pairs"] == [-1, -1, -1]


@pytest.mark.parametrize("route", ["generate", "rows", "v1"])
def test_the_other_json_forms_leave_the_mask_out_too(server, route):
    row = {"ids": [1, 2, 3], "types": [0, 1, 0]}
    body, path = {
        "generate": (row, "/v2/models/encoder/generate"),
        "rows": ([row, row], "/v2/models/encoder/generate"),
        "v1": ({"instances": [row, row]}, "/v1/models/encoder:predict"),
    }[route]
    answer = requests.post(f"{server.url}{path}", json=body, timeout=30)
    assert answer.status_code == 200, answer.text
    assert "[2,5,6]" in answer.text.replace(" ", "")
