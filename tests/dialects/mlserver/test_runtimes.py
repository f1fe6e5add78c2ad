"""Custom runtimes of MLServer, unchanged, with ksrv's stand-in for the package: over REST and gRPC."""

import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import requests
import tritonclient.grpc

from ksrv.testing import Server
from tests.support.paths import ROOT
from tests.support.wire.json_tensors import tensor

pytest.importorskip("pydantic", reason="make test-dialects installs it")
pytestmark = pytest.mark.long

SUMS = """
import mlserver
from mlserver import MLModel, types
from mlserver.codecs import NumpyCodec
from mlserver.errors import MLServerError
from mlserver.logging import logger


class SumModel(MLModel):
    async def load(self) -> bool:
        mlserver.register("sums", "the sums")
        self.calls = 0
        self.factor = self.settings.parameters.extra["factor"]
        return True

    async def predict(self, payload: types.InferenceRequest) -> types.InferenceResponse:
        self.calls += 1
        decoded = self.decode(payload.inputs[0])
        if isinstance(decoded, types.TensorData):
            raise MLServerError(f"the input {payload.inputs[0].name} has no content type", 422)
        if decoded[0, 0] < 0:
            raise ValueError("negative")
        total = decoded.sum(axis=1, keepdims=True) * self.factor
        mlserver.log(sums=float(total[0, 0]))
        return types.InferenceResponse(
            id=payload.id,
            model_name=self.name,
            model_version=self.version,
            outputs=[
                NumpyCodec.encode_output(name="total", payload=total),
                types.ResponseOutput(name="calls", datatype="INT32", shape=[len(total)], data=[self.calls] * len(total)),
            ],
            parameters=types.Parameters(
                headers={"x-kind": payload.parameters.headers.get("x-kind", "none")}, note="hi"
            ),
        )

    async def unload(self) -> bool:
        logger.warning("unloaded %s", self.name)
        return True
"""

ARGUMENTS = """
from datetime import datetime
from typing import List, Optional, Tuple

import numpy as np
from mlserver import MLModel
from mlserver.codecs import decode_args


class Mixed(MLModel):
    @decode_args
    async def predict(
        self, numbers: np.ndarray, words: Optional[List[str]] = None, blobs: Optional[List[bytes]] = None
    ) -> Tuple[np.ndarray, List[str], List[bytes]]:
        return numbers * 2, [word.upper() for word in words or []], [blob[::-1] for blob in blobs or []]
"""

ECHO = """
import json
from mlserver import MLModel
from mlserver.codecs import StringCodec
from mlserver.types import InferenceResponse, ResponseOutput


class Echo(MLModel):
    async def predict(self, payload):
        facts = {}
        for each in payload.inputs:
            decoded = self.decode(each)
            raw = each.data.root
            facts[each.name] = {"decoded": repr(decoded), "raw": repr(raw)}
        text = json.dumps(facts)
        return InferenceResponse(model_name=self.name, outputs=[
            ResponseOutput(name="facts", datatype="BYTES", shape=[len(text)], data=[text]),
        ])
"""

WORDS = """
import asyncio
from mlserver import MLModel
from mlserver.codecs import StringCodec
from mlserver.errors import InferenceError
from mlserver.types import InferenceResponse


class Words(MLModel):
    async def predict_stream(self, payloads):
        payload = [each async for each in payloads][0]
        for word in StringCodec.decode_input(payload.inputs[0])[0].split(" "):
            await asyncio.sleep(0.01)
            if word == "stop":
                raise InferenceError("the word stop is not said")
            output = StringCodec.encode_output(name="word", payload=[word])
            yield InferenceResponse(model_name=self.name, outputs=[output])
"""

SLOW = """
import asyncio
from mlserver import MLModel
from mlserver.codecs import NumpyCodec


class Meeting(MLModel):
    async def load(self):
        self.here = asyncio.Barrier(4)
        return True

    async def predict(self, payload):
        await self.here.wait()  # four requests at a time, or none
        from mlserver.types import InferenceResponse
        return InferenceResponse(model_name=self.name, outputs=payload_outputs(payload))


def payload_outputs(payload):
    return [NumpyCodec.encode_output(each.name, NumpyCodec.decode_input(each)) for each in payload.inputs]
"""


def write(folder, file, code, **settings):
    made = folder / file
    made.mkdir()
    (made / f"{file}_model.py").write_text(code)
    kind = code.split("class ")[1].split("(")[0]
    settings = {"implementation": f"{file}_model.{kind}", **settings}
    (made / "model-settings.json").write_text(json.dumps(settings))


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    typed = {
        "name": "numbers",
        "datatype": "FP32",
        "shape": [-1, 3],
        "parameters": {"content_type": "np"},
    }
    shared = {"parameters": {"version": "v1.2.3", "extra": {"factor": 10}}, "inputs": [typed]}
    write(folder, "sums", SUMS, name="sum-model", platform="sums", **shared)
    write(folder, "joined", SUMS, max_batch_size=8, max_batch_time=0.3, **shared)
    write(folder, "mixed", ARGUMENTS)
    dates = {
        "name": "dates",
        "datatype": "BYTES",
        "shape": [-1],
        "parameters": {"content_type": "datetime"},
    }
    write(folder, "echo", ECHO, inputs=[dates])
    write(folder, "words", WORDS)
    write(folder, "meeting", SLOW)
    with Server(folder, grpc="127.0.0.1:0", start_timeout=300) as running:
        yield running


def post(server, model, *inputs, route="infer", headers=None, **fields):
    url = f"{server.url}/v2/models/{model}/{route}"
    return requests.post(url, json={"inputs": list(inputs), **fields}, headers=headers, timeout=30)


def test_a_runtime_answers_with_its_outputs_parameters_and_headers(server):
    answer = post(
        server, "sum-model", tensor("numbers", [[1, 2, 3]]), headers={"x-kind": "trial"}, id="7"
    )
    assert answer.status_code == 200, answer.text
    assert answer.json() == {
        "model_name": "sum-model",
        "model_version": "v1.2.3",
        "id": "7",
        "parameters": {"note": "hi"},
        "outputs": [
            {"name": "total", "datatype": "FP32", "shape": [1, 1], "parameters": {"content_type": "np"}, "data": [60.0]},
            {"name": "calls", "datatype": "INT32", "shape": [1], "data": answer.json()["outputs"][1]["data"]},
        ],
    }  # fmt: skip
    assert answer.headers["x-kind"] == "trial"
    assert (
        'sums_count{model="sum-model",version="v1.2.3"}'
        in requests.get(f"{server.url}/metrics", timeout=30).text
    )


def test_metadata_shows_the_settings(server):
    shown = requests.get(f"{server.url}/v2/models/sum-model/versions/v1.2.3", timeout=30).json()
    assert shown["platform"] == "sums"
    assert shown["inputs"] == [{"name": "numbers", "datatype": "FP32", "shape": [-1, 3]}]


def test_gRPC_answers_as_REST_does(server):
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        given = tritonclient.grpc.InferInput("numbers", [2, 2], "FP32")
        given.set_data_from_numpy(np.array([[1, 2], [3, 4]], np.float32))
        answer = client.infer("sum-model", [given])
        assert answer.as_numpy("total").tolist() == [[30.0], [70.0]]
        text = tritonclient.grpc.InferInput("words", [1], "BYTES")
        text.set_data_from_numpy(np.array([b"a"], object))
        facts = json.loads(client.infer("echo", [text]).as_numpy("facts")[0])
        assert facts["words"]["raw"] == "[b'a']"


def test_an_error_with_a_status_reaches_the_client(server):
    answer = post(server, "sum-model", tensor("x", [[1, 2]]))
    assert answer.status_code == 422
    assert answer.json()["error"] == "the input x has no content type"


def test_another_error_is_a_500_without_its_text(server):
    answer = post(server, "sum-model", tensor("numbers", [[-1, 2]]))
    assert answer.status_code == 500
    assert "ValueError" in answer.json()["error"] and "negative" not in answer.json()["error"]
    assert "ValueError: negative" in server.log


def test_requests_are_joined_by_rows_if_their_parameters_are_equal(server):
    with ThreadPoolExecutor(4) as pool:
        rows = [[[n, n, n]] for n in range(4)]
        answers = list(
            pool.map(lambda row: post(server, "joined", tensor("numbers", row)).json(), rows)
        )
    assert [answer["outputs"][0]["data"] for answer in answers] == [[n * 30.0] for n in range(4)]
    assert len({answer["outputs"][1]["data"][0] for answer in answers}) < 4
    with ThreadPoolExecutor(2) as pool:
        sent = [{"parameters": {"kind": kind}} for kind in "ab"]
        answers = list(
            pool.map(
                lambda p: post(server, "joined", tensor("numbers", [[1, 1, 1]]), **p).json(), sent
            )
        )
    assert [answer["outputs"][0]["data"] for answer in answers] == [[30.0], [30.0]]


def test_requests_are_under_way_at_a_time(server):
    with ThreadPoolExecutor(4) as pool:
        answers = list(
            pool.map(lambda n: post(server, "meeting", tensor("x", [[n]])).json(), range(4))
        )
    assert [answer["outputs"][0]["data"] for answer in answers] == [[0.0], [1.0], [2.0], [3.0]]


def test_decode_args_takes_arrays_texts_and_bytes(server):
    answer = post(
        server,
        "mixed",
        tensor("numbers", [1.5, 2], shape=[2]),
        tensor("words", ["no", "yes"], "BYTES"),
        tensor("blobs", ["YWJj"], "BYTES", content_type="base64"),
    )
    assert answer.status_code == 200, answer.text
    outputs = {each["name"]: each for each in answer.json()["outputs"]}
    assert outputs["output-0"]["data"] == [3.0, 4.0] and outputs["output-0"]["shape"] == [2, 1]
    assert outputs["output-1"]["data"] == ["NO", "YES"]
    assert outputs["output-2"]["data"] == ["Y2Jh"]
    assert outputs["output-2"]["parameters"] == {"content_type": "base64"}


def test_decode_args_names_an_unknown_input(server):
    answer = post(server, "mixed", tensor("numbers", [1.0]), tensor("extra", [1.0]))
    assert answer.status_code == 400
    assert answer.json()["error"] == "unknown inputs 'extra'; expected numbers, words, blobs"


@pytest.mark.parametrize(
    ("given", "decoded"),
    [
        (tensor("x", ["a", "é"], "BYTES", content_type="str"), "['a', 'é']"),
        (tensor("x", [[1, 2]], "INT16", content_type="np"), "array([[1, 2]], dtype=int16)"),
        (tensor("x", ["YWI="], "BYTES", content_type="base64"), "[b'ab']"),
        (tensor("dates", ["2026-01-02"], "BYTES"), "[datetime.datetime(2026, 1, 2, 0, 0)]"),
        (tensor("x", ["2026-01-02T03:04"], "BYTES", content_type="datetime"), "[datetime.datetime(2026, 1, 2, 3, 4)]"),
        (tensor("x", ["a text"], "BYTES", shape=[6], content_type="str"), "['a text']"),
        (tensor("x", "a text", "BYTES", shape=[6], content_type="str"), "['a text']"),
        (tensor("x", ["one", "two"], "BYTES", shape=[2, 3], content_type="str"), "['one', 'two']"),
    ],
)  # fmt: skip
def test_content_types_decode(server, given, decoded):
    answer = post(server, "echo", given)
    assert answer.status_code == 200, answer.text
    [output] = answer.json()["outputs"]
    assert output["shape"] == [1]
    assert json.loads(output["data"][0])[given["name"]]["decoded"] == decoded


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (
            tensor("x", ["tomorrow"], "BYTES", content_type="datetime"),
            "the input 'x' (BYTES [1]) cannot be read with the content type 'datetime': Invalid isoformat string: 'tomorrow'",
        ),
        (
            tensor("x", [1.0], content_type="str"),
            "the input 'x' (FP32 [1]) cannot be read with the content type 'str': expected BYTES, found a float",
        ),
    ],
)
def test_a_value_that_does_not_fit_its_content_type_gets_400(server, given, error):
    answer = post(server, "echo", given)
    assert (answer.status_code, answer.json()["error"]) == (400, error)


def test_a_lone_text_is_no_number(server):
    answer = post(server, "echo", tensor("x", "7", "FP32", shape=[1]))
    assert answer.status_code == 400
    assert "input 'x' (index 0): 'data'" in answer.json()["error"]


def test_a_client_cannot_send_the_decoded_value(server):
    answer = post(server, "echo", tensor("x", [1], "INT16", _decoded_payload="forged"))
    facts = json.loads(answer.json()["outputs"][0]["data"][0])
    assert "TensorData" in facts["x"]["decoded"]


@pytest.mark.parametrize("parameters", [{"content_type": 5}, {"headers": "h"}])
def test_a_parameter_of_another_type_gets_400(server, parameters):
    answer = post(server, "echo", tensor("x", [1], **parameters))
    assert answer.status_code == 400
    assert answer.json()["error"].startswith(f"inputs.0.parameters.{next(iter(parameters))}: ")


def events(answer):
    return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]


@pytest.mark.parametrize("route", ["infer_stream", "generate_stream"])
def test_a_stream_sends_each_part(server, route):
    answer = post(server, "words", tensor("prompt", ["Who is it"], "BYTES"), route=route)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert [each["outputs"][0]["data"] for each in events(answer)] == [["Who"], ["is"], ["it"]]
    answer = post(server, "words", tensor("prompt", ["a stop b"], "BYTES"), route=route)
    first, last = events(answer)
    assert first["outputs"][0]["data"] == ["a"]
    assert last == {"error": "the word stop is not said"}


def test_infer_stream_of_a_runtime_without_parts_sends_one_answer(server):
    answer = post(server, "sum-model", tensor("numbers", [[1, 2, 3]]), route="infer_stream")
    assert [each["outputs"][0]["data"] for each in events(answer)] == [[60.0]]


def test_infer_of_a_runtime_with_parts_names_the_stream(server):
    answer = post(server, "words", tensor("prompt", ["a"], "BYTES"))
    assert answer.status_code == 400
    assert (
        "answers in parts only (predict_stream); call /infer_stream or ModelStreamInfer"
        in answer.json()["error"]
    )


def test_streams_run_beside_each_other(server):
    answers = []
    threads = [
        threading.Thread(
            target=lambda: answers.append(
                events(
                    post(
                        server,
                        "words",
                        tensor("prompt", ["a b c d"], "BYTES"),
                        route="infer_stream",
                    )
                )
            )
        )
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [[each["outputs"][0]["data"][0] for each in one] for one in answers] == [
        ["a", "b", "c", "d"]
    ] * 8


def test_unload_runs_when_the_server_stops(tmp_path):
    write(tmp_path, "sums", SUMS, parameters={"extra": {"factor": 1}})
    with Server(tmp_path / "sums") as running:
        pass
    assert "unloaded sums" in running.log


def test_a_reader_of_the_page_moves_a_model(tmp_path):
    page = (ROOT / "docs/migration/mlserver.md").read_text()
    for file, content in re.findall(r'title="([^"]+)"\n(.*?)^```', page, re.MULTILINE | re.DOTALL):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(content)
    [(path, body)] = re.findall(r"curl http://127.0.0.1:8080(\S+) -d '(.*?)'", page, re.DOTALL)
    with Server(tmp_path / "words") as running:
        answer = requests.post(running.url + path, data=body, timeout=30)
    assert answer.json()["outputs"][0]["data"] == ["to", "be", "or", "not"]
    assert answer.json()["model_version"] == "v1"
