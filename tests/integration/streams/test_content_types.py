"""Outputs of files: the content type of an output, by model.yaml, a type hint or the handler, in every form of answer."""

import base64
import json

import numpy as np
import pytest
import requests

from ksrv.client import Client, ClientError
from ksrv.testing import Server, load
from tests.support.models import write_functions
from tests.support.wire.text_routes import FORM, ROUTES, infer_body, post

SOURCE = """
from collections.abc import Iterator
from typing import Annotated, TypedDict

from ksrv import BaseHandler, Bytes, Float32

def declared(text):
    return [b"RIFF" + one for one in text]

def hinted(text: Bytes) -> Annotated[Bytes, "audio/wav"]:
    return [b"RIFF" + one for one in text]

class Sized(BaseHandler):
    outputs = {"picture": Bytes.file("image/png"), "size": Float32}

    def inference(self, text: Bytes, batch):
        for row, one in enumerate(text):
            if one != b"png":
                batch.set_header(row, "Content-Type", one.decode())
        return {"picture": list(text), "size": [float(len(one)) for one in text]}

def chosen(text: Bytes, batch) -> Bytes:
    for row, one in enumerate(text):
        if b"/" in one:
            batch.set_header(row, "content-type", one.decode())
    return list(text)

class Both(TypedDict):
    sound: Annotated[Bytes, "audio/wav"]
    picture: Annotated[Bytes, "image/png"]

def both(text: Bytes) -> Both:
    return {"sound": list(text), "picture": list(text)}

def parts(text: Bytes) -> Iterator[Annotated[Bytes, "audio/wav"]]:
    for letter in text[0].decode():
        yield [letter.encode()]
"""
INPUT = "inputs: [{name: text, datatype: BYTES, shape: [-1]}]\n"
DECLARED = (
    INPUT
    + "outputs: [{name: output, datatype: BYTES, shape: [-1], content_type: audio/wav}]\n"
    + "batching: {max_batch_size: 2, split: true}\n"
)
MODELS = {"declared": DECLARED} | dict.fromkeys(("hinted", "chosen", "Sized", "both", "parts"), "")
WAV = b"RIFFhi"


def b64(content):
    return base64.b64encode(content).decode()


@pytest.fixture(scope="module", params=["inline", "process"])
def server(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    executor = f"executor: {request.param}\n"
    write_functions(folder, SOURCE, {name: executor + keys for name, keys in MODELS.items()})
    with Server([str(folder)]) as running:
        yield running


# The most exact entry says how much a client wants a type (RFC 9110 12.5.1).
MORE_EXACT = "audio/*;q=0.1, audio/wav, application/json;q=0.5"
LESS_EXACT = "audio/*, audio/wav;q=0.1, application/json;q=0.5"


@pytest.mark.parametrize("accept", ["audio/wav", "audio/*", "audio/wav, */*", "application/json;q=0.5, audio/*", MORE_EXACT])  # fmt: skip
@pytest.mark.parametrize("model", ["declared", "hinted"])
@pytest.mark.parametrize("route", ROUTES)
def test_client_that_accepts_the_type_gets_the_file(server, route, model, accept):
    answer = post(server, route, model, accept)
    assert answer.status_code == 200, answer.text
    assert (answer.content, answer.headers["Content-Type"]) == (WAV, "audio/wav")
    assert "Inference-Header-Content-Length" not in answer.headers


@pytest.mark.parametrize(
    "accept", [None, "*/*", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"]
)
def test_form_of_curl_or_a_browser_is_answered_by_the_file(server, accept):
    answer = post(server, "a form", "declared", accept)
    assert (answer.content, answer.headers["Content-Type"]) == (WAV, "audio/wav")


@pytest.mark.parametrize("accept", ["application/json", "application/json, text/plain, */*", "image/png", "audio/wav;q=0, */*;q=0", LESS_EXACT])  # fmt: skip
def test_form_is_answered_by_json_if_the_client_prefers_json(server, accept):
    output = post(server, "a form", "declared", accept).json()["outputs"][0]
    assert output["data"] == [b64(WAV)]


@pytest.mark.parametrize("accept", [None, "*/*", "application/json"])
@pytest.mark.parametrize("model", ["declared", "hinted"])
def test_json_has_files_in_base64_with_a_parameter(server, model, accept):
    output = post(server, "infer", model, accept).json()["outputs"][0]
    assert output == {
        "name": "output",
        "datatype": "BYTES",
        "shape": [1],
        "parameters": {"media_type": "audio/wav", "content_type": "base64"},
        "data": [b64(WAV)],
    }
    generated = post(server, "generate", model, accept).json()
    assert generated.pop("model_name") == model
    assert generated == {"output": b64(WAV), "content_types": {"output": "audio/wav"}}
    assert post(server, "v1", model, accept).json() == {"predictions": [{"b64": b64(WAV)}]}


def test_several_rows_and_outputs_are_json(server):
    url = f"{server.url}/v2/models/{{}}/infer"
    headers = {"Accept": "audio/wav"}
    rows = requests.post(url.format("declared"), **infer_body("a", "b", "c"), headers=headers)
    assert rows.json()["outputs"][0]["data"] == [b64(b"RIFF" + one) for one in (b"a", b"b", b"c")]
    assert rows.json()["outputs"][0]["parameters"]["media_type"] == "audio/wav"
    both = requests.post(url.format("both"), **FORM, headers=headers).json()["outputs"]
    assert [one["parameters"]["media_type"] for one in both] == ["audio/wav", "image/png"]
    generate = f"{server.url}/v2/models/both/generate"
    types = {"sound": "audio/wav", "picture": "image/png"}
    rows = requests.post(generate, json=[{"text": "a"}, {"text": "b"}]).json()
    assert rows == [
        {"content_types": types, "sound": b64(one), "picture": b64(one)} for one in (b"a", b"b")
    ]
    body = infer_body()
    body["json"]["outputs"] = [{"name": "picture"}]
    answer = requests.post(url.format("both"), **body, headers={"Accept": "image/*"})
    assert (answer.content, answer.headers["Content-Type"]) == (b"hi", "image/png")


def test_handler_chooses_the_type_of_each_request(server):
    url = f"{server.url}/v2/models/chosen/infer"
    for text, accept in [("image/png", "image/*"), ("audio/L16; rate=24000", "audio/l16")]:
        answer = requests.post(url, **infer_body(text), headers={"Accept": accept})
        assert (answer.content, answer.headers["Content-Type"]) == (text.encode(), text)
    plain = requests.post(url, **infer_body()).json()["outputs"][0]
    assert (plain["data"], plain.get("parameters")) == (["hi"], None)
    sized = f"{server.url}/v2/models/Sized/infer"
    for text, kind in [("png", "image/png"), ("image/webp", "image/webp")]:
        found = requests.post(sized, **infer_body(text)).json()["outputs"]
        assert found[0]["parameters"] == {"media_type": kind, "content_type": "base64"}
        assert found[1]["data"] == [len(text)]


@pytest.mark.parametrize("kind", ["text/html", "image/svg+xml", "application/json", "a/b/c"])
def test_handler_that_names_a_type_that_is_no_file_fails_the_request(server, kind):
    answer = requests.post(f"{server.url}/v2/models/chosen/infer", **infer_body(kind))
    assert answer.status_code == 500
    assert "ValueError" in answer.json()["error"]


def test_binary_answers_and_grpc_have_the_bytes_and_the_parameter(server):
    for url in (server.url, f"grpc://{server.grpc}"):
        with Client(url) as client:
            answer = client.infer("declared", {"text": ["hi"]})
            assert answer["output"].tolist() == [WAV]
            assert (answer.file, answer.content_types) == (WAV, {"output": "audio/wav"})
            assert client.infer("chosen", ["hi"]).content_types == {}
            with pytest.raises(ClientError, match="answers 0 files"):
                _ = client.infer("chosen", ["hi"]).file
            with pytest.raises(ClientError, match="answers 2 files"):
                _ = client.infer("both", ["hi"]).file
            parts = list(client.stream("parts", ["hi"]))
            assert [part.file for part in parts if part] == [b"h", b"i"]


def test_streams_have_files_in_base64(server):
    headers = {"Accept": "text/event-stream, */*;q=0.5"}
    answer = requests.post(f"{server.url}/v2/models/parts/infer", **FORM, headers=headers)
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line]
    outputs = [event["outputs"][0] for event in events]
    assert [output["data"] for output in outputs] == [[b64(b"h")], [b64(b"i")]]
    assert {output["parameters"]["media_type"] for output in outputs} == {"audio/wav"}
    generate = f"{server.url}/v2/models/parts/generate_stream"
    answer = requests.post(generate, json={"text": "hi"}, headers=headers)
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line]
    assert [event["output"] for event in events] == [b64(b"h"), b64(b"i")]
    assert events[1]["content_types"] == {"output": "audio/wav"}


def test_tritonclient_reads_the_file(server):
    triton = pytest.importorskip("tritonclient.http")
    text = triton.InferInput("text", [1], "BYTES")
    text.set_data_from_numpy(np.array([b"hi"], object))
    with triton.InferenceServerClient(server.url.removeprefix("http://")) as client:
        answer = client.infer("declared", [text])
    assert answer.as_numpy("output").tolist() == [WAV]
    assert answer.get_output("output")["parameters"]["media_type"] == "audio/wav"


def test_metadata_and_openapi_name_the_type(server):
    properties = requests.get(f"{server.url}/v2/models/declared").json()["properties"]
    assert properties["output.content_type"] == "audio/wav"
    paths = requests.get(f"{server.url}/openapi.json").json()["paths"]
    answer = paths["/v2/models/declared/infer"]["post"]["responses"]["200"]["content"]
    assert "audio/wav" in answer
    assert "image/*" not in answer


@pytest.mark.parametrize(
    ("output", "error"),
    [
        ("datatype: BYTES, shape: [-1], content_type: text/html", "found 'text/html'"),
        ("datatype: BYTES, shape: [-1], content_type: image/svg+xml", "HTML, SVG, XML and JSON"),
        ("datatype: BYTES, shape: [-1], content_type: wav", "such as audio/wav"),
        ("datatype: BYTES, shape: [-1], content_type: 3", "text"),
        ("datatype: BYTES, shape: [-1], content_type: ''", "content_type"),
        ("datatype: FP32, shape: [-1], content_type: audio/wav", "the output has FP32"),
        ("datatype: BYTES, shape: [-1, 3], content_type: audio/wav", "its shape is [-1]"),
    ],
)
def test_content_type_that_does_not_fit_is_refused(tmp_path, output, error):
    (tmp_path / "handler.py").write_text(SOURCE)
    (tmp_path / "model.yaml").write_text(
        f"handler: handler.py:declared\n{INPUT}outputs:\n  - {{name: output, {output}}}\n"
    )
    with pytest.raises(Exception, match=r"model.yaml") as caught:
        load(str(tmp_path)).close()
    assert error in str(caught.value)


def test_type_hint_with_a_type_that_does_not_fit_is_refused(tmp_path):
    file = tmp_path / "app.py"
    file.write_text(SOURCE.replace('Bytes, "audio/wav"]:\n', 'Float32[3], "audio/wav"]:\n', 1))
    with pytest.raises(Exception, match="the output has FP32"):
        load(f"{file}:hinted").close()
