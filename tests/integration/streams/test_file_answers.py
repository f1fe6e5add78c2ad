"""Bytes that a handler answers and that are not text: in JSON of every route, and alone as a file."""

import base64
import json

import pytest
import requests

from ksrv.client import Client
from ksrv.testing import Server
from tests.support.models import write_functions
from tests.support.wire.text_routes import ROUTES, infer_body, post

SOURCE = """
from collections.abc import Iterator
from typing import TypedDict
from ksrv import Bytes, Float32, settings

PNG = b"\\x89PNG\\r\\n\\x1a\\n\\x00"

def speech(text: Bytes) -> Bytes:
    return [b"RIFF\\xff" + one for one in text]

def words(text: Bytes) -> Bytes:
    return list(text)

@settings(batching={"max_batch_size": 4})
def picture(x: Float32[2]) -> Bytes:
    return [PNG] * len(x)

def number(text: Bytes) -> Float32:
    return [2.0] * len(text)

class Both(TypedDict):
    sound: Bytes
    length: Float32

def both(text: Bytes) -> Both:
    return {"sound": [b"\\xff" + one for one in text], "length": [float(len(one)) for one in text]}

def parts(text: Bytes) -> Iterator[Bytes]:
    for letter in text[0].decode():
        yield [b"\\xff" + letter.encode()]
"""
MODELS = ("speech", "words", "picture", "number", "both", "parts")
WAV = b"RIFF\xffhi"
PNG = b"\x89PNG\r\n\x1a\n\x00"


def b64(content):
    return base64.b64encode(content).decode()


@pytest.fixture(scope="module", params=["inline", "process"])
def server(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    write_functions(folder, SOURCE, dict.fromkeys(MODELS, f"executor: {request.param}\n"))
    with Server([str(folder)]) as running:
        yield running


def output(answer):
    assert answer.status_code == 200, answer.text
    (found,) = answer.json()["outputs"]
    return found


@pytest.mark.parametrize(
    "accept", ["audio/wav", "application/octet-stream", "Audio/WAV, */*;q=0.1"]
)
@pytest.mark.parametrize("route", ROUTES)
def test_client_that_accepts_a_file_gets_the_bytes_alone(server, route, accept):
    answer = post(server, route, "speech", accept)
    assert answer.status_code == 200, answer.text
    assert answer.content == WAV
    assert answer.headers["Content-Type"] == accept.partition(",")[0].lower()
    assert "Inference-Header-Content-Length" not in answer.headers


@pytest.mark.parametrize(
    "accept",
    [
        "image/svg+xml",
        "text/html",
        "image/*",
        "application/json, audio/wav",
        "audio/wav;q=0.5, application/json",
        "text/html,application/xhtml+xml,image/avif,image/webp,*/*;q=0.8",
    ],
)
def test_other_clients_get_json(server, accept):
    assert output(post(server, "infer", "speech", accept))["data"] == [{"b64": b64(WAV)}]


def test_fast_requests_are_answered_by_files_too(server):
    inputs = [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]
    url = f"{server.url}/v2/models/picture/infer"
    for _ in range(3):
        answer = requests.post(url, json={"inputs": inputs}, headers={"Accept": "image/png"})
        assert (answer.content, answer.headers["Content-Type"]) == (PNG, "image/png")
        assert output(requests.post(url, json={"inputs": inputs}))["data"] == [{"b64": b64(PNG)}]


def test_what_is_not_one_element_is_answered_as_json(server):
    headers = {"Accept": "audio/wav"}
    url = server.url + "/v2/models/{}/infer"
    two = requests.post(url.format("speech"), **infer_body("hi", "no"), headers=headers)
    assert output(two)["data"] == [{"b64": b64(WAV)}, {"b64": b64(b"RIFF\xffno")}]
    assert output(requests.post(url.format("number"), **infer_body(), headers=headers))["data"] == [
        2
    ]
    both = requests.post(url.format("both"), **infer_body(), headers=headers).json()["outputs"]
    assert [one["data"] for one in both] == [[{"b64": b64(b"\xffhi")}], [2.0]]
    body = infer_body()
    body["json"]["outputs"] = [{"name": "sound"}]
    assert requests.post(url.format("both"), **body, headers=headers).content == b"\xffhi"


def test_binary_data_comes_before_accept(server):
    body = infer_body(binary_data=True)
    url = f"{server.url}/v2/models/speech/infer"
    answer = requests.post(url, **body, headers={"Accept": "application/octet-stream"})
    start = int(answer.headers["Inference-Header-Content-Length"])
    assert answer.content[start:] == len(WAV).to_bytes(4, "little") + WAV


def test_plain_json_and_v1_carry_bytes(server):
    assert post(server, "generate", "speech").json()["output"] == {"b64": b64(WAV)}
    assert post(server, "generate", "words").json()["output"] == "hi"
    assert post(server, "v1", "speech").json() == {"predictions": [{"b64": b64(WAV)}]}
    url = f"{server.url}/v2/models/speech/generate"
    records = requests.post(url, json=[{"text": "hi"}, {"text": {"b64": b64(b"\xfe")}}]).json()
    assert records == [{"output": {"b64": b64(WAV)}}, {"output": {"b64": b64(b"RIFF\xff\xfe")}}]


def test_client_may_ask_for_base64(server):
    url = f"{server.url}/v2/models/words/infer"
    for body in (
        infer_body(binary_data="base64"),
        infer_body(parameters={"binary_data": "base64"}),
    ):
        found = output(requests.post(url, **body))
        assert (found["data"], found["parameters"]) == ([b64(b"hi")], {"content_type": "base64"})
    plain = infer_body(parameters={"binary_data": "base64"}, binary_data=False)
    assert output(requests.post(url, **plain))["data"] == ["hi"]
    generate = {"text": "hi", "parameters": {"binary_data": "base64"}}
    answer = requests.post(f"{server.url}/v2/models/words/generate", json=generate).json()
    assert answer["output"] == b64(b"hi")
    refused = requests.post(url, **infer_body(binary_data="hex"))
    assert refused.status_code == 400
    assert "'binary_data' must be true, false or \"base64\", not 'hex'" in refused.json()["error"]


@pytest.mark.parametrize(
    "accept", ["text/event-stream", "application/jsonl", "text/event-stream, audio/wav;q=0.9"]
)
def test_streams_carry_bytes(server, accept):
    expected = [[{"b64": b64(b"\xffh")}], [{"b64": b64(b"\xffi")}]]
    url = f"{server.url}/v2/models/parts/infer"

    def parts(body):
        answer = requests.post(url, **body, headers={"Accept": accept})
        lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
        return [json.loads(line)["outputs"][0]["data"] for line in lines]

    assert parts(infer_body()) == expected
    assert parts(infer_body(binary_data="base64")) == [[b64(b"\xffh")], [b64(b"\xffi")]]


def test_generate_streams_carry_bytes(server):
    url = f"{server.url}/v2/models/parts/generate_stream"
    answer = requests.post(url, json={"text": "h"})
    assert json.loads(answer.text.partition("data: ")[2])["output"] == {"b64": b64(b"\xffh")}


def test_client_library_reads_streams_of_bytes(server):
    with Client(server.url) as client:
        parts = [part["output"].tolist() for part in client.stream("parts", {"text": ["hi"]})]
    assert parts == [[b"\xffh"], [b"\xffi"]]
