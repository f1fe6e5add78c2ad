"""Cookies that an archive's handler sets, and its responseTimeout, over TorchServe's routes and KServe v2."""

import grpc
import pytest
import requests

from ksrv.testing import Server
from tests.support.torchserve.archives import archive
from tests.support.wire.grpc_calls import infer_request, stub_infer

HANDLER = """
import os
import time


def handle(data, context):
    if data is None:  # initialize
        return None
    context.set_response_header(0, "Set-Cookie", "session=a; HttpOnly")
    body = data[0].get("body") or data[0].get("data")
    time.sleep(float(body))
    return [os.getpid()]
"""
COOKIE = "session=a; HttpOnly"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sleeps")
    store, handler = folder / "store", folder / "sleeps_handler.py"
    store.mkdir()
    handler.write_text(HANDLER)
    archive(store, "sleeps", str(handler), settings={"deviceType": "cpu", "responseTimeout": 1})
    with Server(store, torchserve_api=True) as running:
        yield running


def predict(server, body):
    return requests.post(f"{server.url}/predictions/sleeps", data=body, timeout=60)


def test_cookie_is_sent_over_every_protocol(server):
    assert predict(server, b"0").headers["Set-Cookie"] == COOKIE
    tensor = {"name": "data", "datatype": "BYTES", "shape": [1], "data": ["0"]}
    path = f"{server.url}/v2/models/sleeps/infer"
    assert (
        requests.post(path, json={"inputs": [tensor]}, timeout=60).headers["Set-Cookie"] == COOKIE
    )
    with grpc.insecure_channel(server.grpc) as channel:
        raw = b"\1\0\0\0" + b"0"
        _, call = stub_infer(channel).with_call(
            infer_request("sleeps", ("data", "BYTES", [1]), raw=[raw]), timeout=60
        )
        assert dict(call.trailing_metadata())["set-cookie"] == COOKIE


def test_process_of_a_handler_that_sends_no_chunks_ends_with_its_response_timeout(server):
    before = predict(server, b"0").text
    late = predict(server, b"2.5")  # longer than the timeout, shorter than the grace of a stream
    assert late.status_code == 500
    assert predict(server, b"0").text != before
