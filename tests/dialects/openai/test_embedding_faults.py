"""Calls that a client gives up, answers that JSON cannot express, and how failures are reported and counted."""

import json
import socket

import pytest
import requests

from ksrv.testing import Server
from tests.support.wait_until import wait_until

EMBEDDER = """
import time

import numpy as np

BATCHES = [0]

def handle(batch, context):
    texts = [bytes(one).decode() for one in batch["text"].reshape(-1)]
    if texts[0] == "count":
        return {"vector": np.full((len(texts), 2), BATCHES[0], np.float32)}
    BATCHES[0] += 1
    if texts[0] == "slow":
        time.sleep(0.05)
    width = 3 if "wide" in texts else 2
    value = {"nan": np.nan, "inf": np.inf}.get(texts[0], 0.1)
    return {"vector": np.full((len(texts), width), value, np.float32)}
"""

RANKER = """
import numpy as np

def handle(batch, context):
    texts = [bytes(one).decode() for one in batch["text"].reshape(-1)]
    return {"score": np.array([[np.nan if one == "nan" else len(one)] for one in texts], np.float32)}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    text = "{name: %s, datatype: BYTES, shape: [-1, 1]}"
    for name, role, handler, inputs, output in (
        ("odd", "embedding", EMBEDDER, text % "text", "{name: vector, datatype: FP32, shape: [-1, -1]}"),
        ("ranker", "rerank", RANKER, f"{text % 'query'}, {text % 'text'}",
         "{name: score, datatype: FP32, shape: [-1, 1]}"),
    ):  # fmt: skip
        (root / name).mkdir()
        (root / name / "handler.py").write_text(handler)
        (root / name / "model.yaml").write_text(
            f"handler: handler.py\nrole: {role}\nbatching: {{max_batch_size: 2, max_delay_ms: 0}}\n"
            f"inputs: [{inputs}]\noutputs: [{output}]\n"
        )
    with Server([root], workers=1) as running:
        yield running


def embeddings(server, texts, **more):
    document = {"model": "odd", "input": texts, **more}
    return requests.post(f"{server.url}/v1/embeddings", json=document, timeout=60)


def batches(server):
    return embeddings(server, "count").json()["data"][0]["embedding"][0]


def test_the_call_of_a_client_that_has_gone_ends(server):
    begun = batches(server)
    body = json.dumps({"model": "odd", "input": ["slow"] * 2000}).encode()
    host, port = server.http.split(":")
    with socket.create_connection((host, int(port))) as client:
        client.sendall(
            b"POST /v1/embeddings HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n" % len(body) + body
        )
        wait_until(lambda: batches(server) > begun)
    seen = [batches(server)]

    def stands_still():
        seen.append(batches(server))
        return seen[-1] == seen[-2]

    wait_until(stands_still)
    assert seen[-1] - begun < 1000


@pytest.mark.parametrize("form", ["float", "base64"])
@pytest.mark.parametrize("text", ["nan", "inf"])
def test_a_vector_without_numbers_is_the_models_failure(server, text, form):
    answer = embeddings(server, ["a", "a", text], encoding_format=form)
    assert answer.status_code == 500
    assert "a vector that is NaN or infinite for the text at 2" in answer.json()["error"]["message"]


def test_vectors_of_two_lengths_are_the_models_failure(server):
    answer = embeddings(server, ["a", "b", "wide"])
    assert answer.status_code == 500
    assert "of the shape [2, 2] and [1, 3] for 3 texts" in answer.json()["error"]["message"]


def test_a_score_without_a_number_is_the_models_failure(server):
    document = {"model": "ranker", "query": "q", "documents": ["a", "nan", "ccc", "bb"]}
    answer = requests.post(f"{server.url}/v1/rerank", json=document, timeout=60)
    assert answer.status_code == 500
    assert "a score that is NaN or infinite for the text at 1" in answer.json()["error"]["message"]
    document["documents"] = ["a", "ccc", "bb"]
    answer = requests.post(f"{server.url}/v1/rerank", json=document, timeout=60).json()
    assert [one["index"] for one in answer["results"]] == [1, 2, 0]


def test_numbers_have_the_digits_of_their_datatype(server):
    assert b'"embedding":[0.1,0.1]' in embeddings(server, "a").content


def test_refusals_are_counted(server):
    refused = 'ksrv_refused_requests_total{protocol="http",reason="too_large"} '

    def count():
        lines = requests.get(f"{server.url}/metrics", timeout=60).text.splitlines()
        return sum(float(line.removeprefix(refused)) for line in lines if line.startswith(refused))

    before = count()
    document = {"model": "ranker", "query": "q" * 40_000, "documents": ["a"] * 2048}
    answer = requests.post(f"{server.url}/v1/rerank", json=document, timeout=60)
    assert answer.status_code == 413
    assert count() == before + 1
