"""Numeric requests over KServe v2 to an archive that joins requests: its inputs are open.

The archive is shown to clients with an input `data` of BYTES, and takes any datatype under that name.
"""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests

from ksrv.testing import Server
from tests.support.torchserve.archives import archive


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    store = tmp_path_factory.mktemp("joined") / "store"
    store.mkdir()
    # A batch leaves when it is full, long before the delay.
    settings = {"deviceType": "cpu", "batchSize": 2, "maxBatchDelay": 60_000}
    archive(store, "pairs", "seen_handler.py", settings=settings)
    with Server(store, start_timeout=200) as running:
        yield running


def infer(server, tensor):
    url = f"{server.url}/v2/models/pairs/infer"
    return requests.post(url, json={"inputs": [tensor]}, timeout=120)


def tensor(datatype, data, name="data"):
    return {"name": name, "datatype": datatype, "shape": [1, len(data)], "data": data}


def rows_of(answers):
    found = []
    for answer in answers:
        assert answer.status_code == 200, answer.text
        (element,) = answer.json()["outputs"][0]["data"]
        seen = json.loads(element)
        found.append((seen["row"]["body"]["repr"], seen["rows"]))
    return found


@pytest.mark.parametrize("name", ["data", "x"])
def test_joined_numbers_keep_their_datatype(server, name):
    sent = [tensor("FP32", [0.5, number], name) for number in (1, 2)]
    with ThreadPoolExecutor(2) as pool:
        found = rows_of(pool.map(lambda one: infer(server, one), sent))
    assert found == [("[0.5, 1.0]", 2), ("[0.5, 2.0]", 2)]


def test_requests_of_different_datatypes_are_never_joined(server):
    kinds = [
        ("FP32", "[1.0, 7.0]"),
        ("INT64", "[1, 7]"),
        ("BYTES", "[bytearray(b'1'), bytearray(b'7')]"),
    ]
    sent = [tensor(kind, ["1", "7"] if kind == "BYTES" else [1, 7]) for kind, _ in kinds] * 2
    with ThreadPoolExecutor(6) as pool:
        found = rows_of(pool.map(lambda one: infer(server, one), sent))
    assert found == [(shown, 2) for _, shown in kinds] * 2
