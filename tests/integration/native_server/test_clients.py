"""The default heads of common clients, recorded from the installed packages, take the fast path."""

import asyncio
import contextlib
import os
import subprocess
import urllib.request

import numpy as np
import pytest

from tests.support.native.gunicorn_server import GunicornServer, infer

PATH = "/v2/models/add/infer"
REQUEST = infer(16)
BODY = REQUEST.partition(b"\r\n\r\n")[2]
JSON_LENGTH = REQUEST.split(b"Inference-Header-Content-Length: ")[1].split(b"\r\n")[0].decode()
FIELDS = {
    "Inference-Header-Content-Length": JSON_LENGTH,
    "Content-Type": "application/octet-stream",
}


def by_requests(address):
    import requests

    assert requests.post(f"http://{address}{PATH}", data=BODY, headers=FIELDS).status_code == 200


def by_requests_json(address):
    import requests

    document = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1.0]}]}
    assert requests.post(f"http://{address}{PATH}", json=document).status_code == 200


def by_httpx(address):
    import httpx

    assert httpx.post(f"http://{address}{PATH}", content=BODY, headers=FIELDS).status_code == 200


def by_aiohttp(address):
    import aiohttp

    async def post():
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"http://{address}{PATH}", data=BODY, headers=FIELDS) as answer,
        ):
            return answer.status

    assert asyncio.run(post()) == 200


def by_urllib3(address):
    import urllib3

    answer = urllib3.PoolManager().request(
        "POST", f"http://{address}{PATH}", body=BODY, headers=FIELDS
    )
    assert answer.status == 200


def by_curl(address):
    fields = [part for name, value in FIELDS.items() for part in ("-H", f"{name}: {value}")]
    command = ["curl", "-sf", "--data-binary", "@-", *fields, f"http://{address}{PATH}"]
    run_curl(command, BODY)


def run_curl(command, body):
    """Run curl without a sanitizer library that Python has preloaded."""
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    subprocess.run(
        command, input=body, env=environment, check=True, capture_output=True, timeout=30
    )


def triton_input(module):
    given = module.InferInput("x", [1, 16], "FP32")
    given.set_data_from_numpy(np.zeros((1, 16), np.float32), binary_data=True)
    return given


def by_tritonclient(address):
    import tritonclient.http as triton

    with contextlib.closing(triton.InferenceServerClient(address)) as client:
        answer = client.infer("add", [triton_input(triton)])
        assert answer.as_numpy("x").shape == (1, 16)


def by_tritonclient_aio(address):
    import tritonclient.http.aio as triton

    async def infer_once():
        async with triton.InferenceServerClient(address) as client:
            answer = await client.infer("add", [triton_input(triton)])
            return answer.as_numpy("x").shape

    assert asyncio.run(infer_once()) == (1, 16)


CLIENTS = {
    "requests": by_requests,
    "requests, JSON": by_requests_json,
    "httpx": by_httpx,
    "aiohttp": by_aiohttp,
    "urllib3": by_urllib3,
    "curl": by_curl,
    "tritonclient": by_tritonclient,
    "tritonclient aio": by_tritonclient_aio,
}


@pytest.fixture(scope="module")
def http_server(tmp_path_factory):
    with GunicornServer(tmp_path_factory.mktemp("native")) as server:
        yield server


@pytest.mark.parametrize("send", CLIENTS.values(), ids=CLIENTS)
def test_client_uses_the_native_route(http_server, send):
    before = http_server.counters()
    send("{}:{}".format(*http_server.address))
    after = http_server.counters()
    assert after["infer"] == before["infer"] + 1
    assert after["app"] == before["app"] + 1  # the first reading of the counters


def test_urllib_closes_and_uses_the_native_route(http_server):
    before = http_server.counters()
    request = urllib.request.Request(
        "http://{}:{}{}".format(*http_server.address, PATH), data=BODY, headers=FIELDS
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        assert answer.status == 200
    after = http_server.counters()
    assert after["infer"] == before["infer"] + 1
    assert after["app"] == before["app"] + 1  # the first reading of the counters


def test_curl_with_expect_continue_is_served(http_server):
    large = infer(400_000)
    length = large.split(b"Inference-Header-Content-Length: ")[1].split(b"\r\n")[0].decode()
    run_curl(
        ["curl", "-sf", "--data-binary", "@-", "-H", f"Inference-Header-Content-Length: {length}",
         "http://{}:{}{}".format(*http_server.address, PATH)],
        large.partition(b"\r\n\r\n")[2],
    )  # fmt: skip
