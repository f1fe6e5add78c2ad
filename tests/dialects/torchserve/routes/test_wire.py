"""Archives over KServe v2: the same handler, the same answer as on TorchServe's routes."""

import io
import json

import grpc
import numpy as np
import pytest
import requests
import tritonclient.grpc as triton
import tritonclient.http
from PIL import Image

from ksrv.protocol.protobuf import message_class
from tests.dialects.torchserve.handlers.test_handler_behaviours import (
    ANSWER,
    ONE_TO_FOUR,
    predict,
    wait_for,
)
from tests.support.wait_until import wait_until
from tests.support.wire.grpc_calls import method, stub_infer


def test_the_number_of_texts_may_be_left_open(served):
    """KServe's examples for TorchServe send `"shape": [-1]`, over REST and gRPC."""

    def asked(shape, texts):
        return {"inputs": [{"name": "data", "datatype": "BYTES", "shape": shape, "data": texts}]}

    def answered(document):
        url = f"{served.url}/v2/models/named/infer"
        return requests.post(url, json=document, timeout=30)

    for texts in (["a"], ["a", "b", "c"]):
        expected, found = answered(asked([len(texts)], texts)), answered(asked([-1], texts))
        assert (found.status_code, found.json()) == (200, expected.json())
        made = message_class("inference.ModelInferRequest")(model_name="named")
        made.inputs.add(name="data", datatype="BYTES", shape=[-1]).contents.bytes_contents.extend(
            text.encode() for text in texts
        )
        with grpc.insecure_channel(served.grpc) as channel:
            over_grpc = stub_infer(channel)(made, timeout=30)
        assert over_grpc.outputs[0].shape == [len(texts)]
        assert over_grpc.raw_output_contents[0].count(b"named") == len(texts)
    assert answered(asked([-1], "a")).json() == answered(asked([1], ["a"])).json()
    for shape, texts in (([-1, 1], ["a"]), ([-2], ["a"]), ([-1], [1]), ([-1], None)):
        assert answered(asked(shape, texts)).status_code == 400
    numbers = {"name": "x", "datatype": "FP32", "shape": [-1], "data": [1.0]}
    assert "is negative" in answered({"inputs": [numbers]}).json()["error"]


@pytest.fixture(scope="module")
def photo():
    """A JPEG whose size makes the handler resize and crop it."""
    rows, columns = np.mgrid[0:300, 0:400]
    pixels = np.stack([rows % 256, columns % 256, (rows * columns) % 256], axis=2)
    file = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(file, "JPEG", quality=90)
    return file.getvalue()


def infer_over(module, address, model, elements):
    """Send BYTES with a client of Triton and return the elements of the answer, parsed."""
    with module.InferenceServerClient(address) as client:
        tensor = module.InferInput("data", [len(elements)], "BYTES")
        tensor.set_data_from_numpy(np.array(elements, dtype=object))
        found = client.infer(model, [tensor]).as_numpy("output")
    assert found.dtype == object
    return [json.loads(element) for element in found]


def over_rest(served, model, elements):
    return infer_over(tritonclient.http, served.http, model, elements)


def test_documented_image_handler_answers_alike_everywhere(served, photo):
    expected = predict(served, "picture", data=photo, headers={"Content-Type": "image/jpeg"}).json()
    assert len(expected) == 5
    assert list(expected.values()) == sorted(expected.values(), reverse=True)
    assert predict(served, "picture", files={"data": photo}).json() == expected
    assert over_rest(served, "picture", [photo]) == [expected]
    assert infer_over(triton, served.grpc, "picture", [photo]) == [expected]
    assert over_rest(served, "picture", [photo] * 3) == [expected] * 3  # one row for each element


def test_each_batch_row_is_a_row_of_the_handler(served):
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 4], "data": ONE_TO_FOUR * 2}]}
    answer = requests.post(f"{served.url}/v2/models/line/infer", json=body, timeout=30).json()
    rows = [json.loads(element) for element in answer["outputs"][0]["data"]]
    assert [(row["y"], row["batch"]) for row in rows] == [(ANSWER, 2)] * 2


@pytest.mark.parametrize("shape", [[1, 8_000_000, 0], [8_000_000, 0]])
def test_a_shape_without_values_becomes_no_lists(served, shape):
    entry = {"name": "x", "datatype": "FP32", "shape": shape}
    answer = requests.post(
        f"{served.url}/v2/models/line/infer", json={"inputs": [entry | {"data": []}]}, timeout=30
    )
    assert answer.status_code == 400
    told = answer.json()["error"]
    assert told.startswith(f"the input 'x' has the shape {shape} and no values; ")
    tensor = triton.InferInput("x", shape, "FP32")
    tensor.set_data_from_numpy(np.zeros(shape, np.float32))
    with (
        triton.InferenceServerClient(served.grpc) as client,
        pytest.raises(triton.InferenceServerException) as refused,
    ):
        client.infer("line", [tensor])
    assert refused.value.message() == told


def test_metadata_of_an_archive(served):
    found = requests.get(f"{served.url}/v2/models/eager", timeout=30).json()
    assert found["inputs"] == [{"name": "data", "datatype": "BYTES", "shape": [-1]}]
    assert found["outputs"] == [{"name": "output", "datatype": "BYTES", "shape": [-1]}]
    assert found["versions"] == ["1.0", "2.0"]
    assert found["platform"] == "torchserve"


def test_handler_failure_over_kserve_v2_is_a_500_that_names_the_exception(served):
    body = {"inputs": [{"name": "x", "datatype": "BYTES", "shape": [1], "data": ["exception"]}]}
    answer = requests.post(f"{served.url}/v2/models/outcome/infer", json=body, timeout=30)
    assert answer.status_code == 500
    assert answer.json() == {"error": "the handler of the model outcome failed with ValueError"}


@pytest.mark.parametrize(
    ("stage", "names", "width"),
    [
        ("preprocess", ["x", "z"], 4),
        ("inference", ["x"], 3),
    ],  # rows of two tensors; too few numbers
)
@pytest.mark.parametrize("model", ["line", "profiled", "micro"])
def test_the_exception_of_a_stage_names_it(served, model, stage, names, width):
    rows = 4 if model == "micro" else 1  # a batch of four leaves when it is full
    data = {"datatype": "FP32", "shape": [rows, width], "data": [1.0] * rows * width}
    body = {"inputs": [{"name": name, **data} for name in names]}
    answer = requests.post(f"{served.url}/v2/models/{model}/infer", json=body, timeout=60)
    assert answer.status_code == 500
    text = answer.json()["error"]
    assert text.startswith(f"the handler of the model {model} failed in {stage} with "), text


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("wrong_length", "it returned 2 items for 1 row"),
        ("return_dict", "it returned dict for 1 row"),
        ("unserialisable", "JSON cannot express an item of the type object"),
    ],
)
def test_a_wrong_answer_is_described(served, mode, words):
    body = {"inputs": [{"name": "x", "datatype": "BYTES", "shape": [1], "data": [mode]}]}
    answer = requests.post(f"{served.url}/v2/models/outcome/infer", json=body, timeout=30)
    assert answer.status_code == 500
    assert f"the handler of the model outcome failed: {words}" in answer.json()["error"]
    if mode != "unserialisable":
        wait_until(lambda: words in served.log)


def grpc_stream(served, *messages):
    with grpc.insecure_channel(served.grpc) as channel:
        stub = method(channel, "ModelStreamInfer", kind="stream_stream")
        yield from stub(iter(messages), timeout=60)


def text_request(model, text, **parameters):
    made = message_class("inference.ModelInferRequest")(model_name=model, id="r")
    made.inputs.add(name="data", datatype="BYTES", shape=[1]).contents.bytes_contents.append(text)
    for name, value in parameters.items():
        made.parameters[name].bool_param = value
    return made


def test_chunks_over_a_grpc_stream(served):
    wanted = text_request("outcome", b"stream", triton_enable_empty_final_response=True)
    answers = [message.infer_response for message in grpc_stream(served, wanted)]
    assert [answer.raw_output_contents[0][4:] for answer in answers] == [
        b"chunk0 ", b"chunk1 ", b"chunk2 ", b"last",
    ]  # fmt: skip
    marks = [answer.parameters["triton_final_response"].bool_param for answer in answers]
    assert marks == [False, False, False, True]
    assert {answer.id for answer in answers} == {"r"}


def test_cancelled_grpc_stream_is_told_to_the_handler(served, tmp_path):
    left = tmp_path / "left"
    wanted = text_request("outcome", json.dumps({"mode": "endless", "left": str(left)}).encode())
    answers = grpc_stream(served, wanted)
    assert next(answers).infer_response.raw_output_contents[0][4:] == b"chunk"
    answers.close()  # ends the call with its channel
    assert wait_for(left).startswith("False after ")


def test_plain_request_gets_the_last_answer_alone(served):
    assert over_rest_text(served, "stream") == "last"


def over_rest_text(served, text):
    body = {"inputs": [{"name": "x", "datatype": "BYTES", "shape": [1], "data": [text]}]}
    answer = requests.post(f"{served.url}/v2/models/outcome/infer", json=body, timeout=30)
    return answer.json()["outputs"][0]["data"][0]
