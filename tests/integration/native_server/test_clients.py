"""The default heads of common clients, recorded from the installed packages, take the fast path."""

import asyncio
import contextlib
import os
import subprocess
import urllib.request
from urllib.parse import urlsplit

import aiohttp
import httpx
import numpy as np
import pytest
import requests
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
import urllib3

from tests.support.native.gunicorn_server import GunicornServer, infer

PATH = "/v2/models/add/infer"
REQUEST = infer(16)
BODY = REQUEST.partition(b"\r\n\r\n")[2]
JSON_LENGTH = REQUEST.split(b"Inference-Header-Content-Length: ")[1].split(b"\r\n")[0].decode()
ENTRY = {"name": "x", "datatype": "FP32", "shape": [1], "data": [1.0]}
FIELDS = {
    "Inference-Header-Content-Length": JSON_LENGTH,
    "Content-Type": "application/octet-stream",
}


async def by_aiohttp(url):
    async with (
        aiohttp.ClientSession(raise_for_status=True) as session,
        session.post(url, data=BODY, headers=FIELDS),
    ):
        pass


def run_curl(url, body, json_length):
    """Run curl without a sanitizer library that Python has preloaded."""
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    length = f"Inference-Header-Content-Length: {json_length}"
    subprocess.run(
        ["curl", "-sf", "--data-binary", "@-", "-H", length, url],
        input=body, env=environment, check=True, capture_output=True, timeout=30,
    )  # fmt: skip


def triton_input(module):
    given = module.InferInput("x", [1, 16], "FP32")
    given.set_data_from_numpy(np.zeros((1, 16), np.float32), binary_data=True)
    return given


def by_tritonclient(url):
    with contextlib.closing(triton.InferenceServerClient(urlsplit(url).netloc)) as client:
        client.infer("add", [triton_input(triton)])


async def by_tritonclient_aio(url):
    async with triton_aio.InferenceServerClient(urlsplit(url).netloc) as client:
        await client.infer("add", [triton_input(triton_aio)])


CLIENTS = {
    "requests": lambda url: requests.post(url, BODY, headers=FIELDS).raise_for_status(),
    "requests, JSON": lambda url: requests.post(url, json={"inputs": [ENTRY]}).raise_for_status(),
    "httpx": lambda url: httpx.post(url, content=BODY, headers=FIELDS).raise_for_status(),
    "aiohttp": lambda url: asyncio.run(by_aiohttp(url)),
    "urllib": lambda url: urllib.request.urlopen(urllib.request.Request(url, BODY, FIELDS)).close(),
    "urllib3": lambda url: urllib3.PoolManager().request("POST", url, body=BODY, headers=FIELDS),
    "curl": lambda url: run_curl(url, BODY, JSON_LENGTH),
    "tritonclient": by_tritonclient,
    "tritonclient aio": lambda url: asyncio.run(by_tritonclient_aio(url)),
}


@pytest.fixture(scope="module")
def http_server(tmp_path_factory):
    with GunicornServer(tmp_path_factory.mktemp("native")) as server:
        yield server


@pytest.fixture
def url(http_server):
    return http_server.url + PATH


@pytest.mark.parametrize("send", CLIENTS.values(), ids=CLIENTS)
def test_client_uses_the_native_route(http_server, url, send):
    before = http_server.counters()
    send(url)
    after = http_server.counters()
    assert after["infer"] == before["infer"] + 1
    assert after["app"] == before["app"] + 1  # the first reading of the counters


def test_curl_with_expect_continue_is_served(url):
    large = infer(400_000)
    length = large.split(b"Inference-Header-Content-Length: ")[1].split(b"\r\n")[0].decode()
    run_curl(url, large.partition(b"\r\n\r\n")[2], length)
