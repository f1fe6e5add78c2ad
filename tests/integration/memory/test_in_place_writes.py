"""A handler writes into its inputs, through numpy and torch, on every route; nothing else changes.

An array is writable if this request alone owns its memory. The handler asserts for itself that no
other input of the request and no array that it has kept from an earlier request changes with it; the
client asserts that the answers belong to the bytes that it sent, again and again over one connection.
"""

import io
import json

import grpc
import numpy as np
import pytest
import requests
from PIL import Image
from tritonclient.grpc import service_pb2, service_pb2_grpc

from ksrv.testing import Server

pytest.importorskip("torch")

HANDLER = """
import numpy as np
import torch  # before the model is ready: the first request would wait for it

from ksrv import BaseHandler
from ksrv._native.memory import buffer_pool


class Writer(BaseHandler):
    def initialize(self, context):
        self.kept = []

    def handle(self, batch, context):
        x, y = batch["x"], batch["y"]
        others = y.copy()
        way = batch.requests[0].parameters.get("way", "numpy")
        facts = [int(x.flags.writeable), buffer_pool.statistics()["leased"]]
        if way == "torch":
            tensor = batch.tensor("x")
            before = x.copy()
            out = tensor.add_(1).numpy()
            shared = np.shares_memory(out, x)
            assert shared == x.flags.writeable
            assert shared or (x == before).all()
        elif x.flags.writeable:
            x += 1
            out = x
        else:
            try:
                x += 1
            except ValueError:
                out = x + 1
            else:
                raise AssertionError("a read-only array was written")
        assert (y == others).all()
        for array, copy in self.kept:
            assert (array == copy).all(), "a kept array changed"
        if way == "keep":
            self.kept.append((x, x.copy()))
        return {"x": out, "y": y, "facts": np.array([facts] * batch.rows, np.int64)}
"""
MODEL = """
handler: handler.py
executor: {executor}
inputs:
  - {{name: x, datatype: FP32, shape: [-1, 999]}}
  - {{name: y, datatype: FP32, shape: [-1, 500]}}
outputs:
  - {{name: x, datatype: FP32, shape: [-1, 999]}}
  - {{name: y, datatype: FP32, shape: [-1, 500]}}
  - {{name: facts, datatype: INT64, shape: [-1, 2]}}
"""
PICTURE = """
from ksrv import BaseHandler


class Picture(BaseHandler):
    def handle(self, batch, context):
        pixels = batch["image"]
        assert pixels.flags.writeable
        pixels += 1
        return {"image": pixels}
"""
PICTURE_MODEL = """
handler: handler.py
inputs:
  - {name: image, datatype: UINT8, shape: [-1, 8, 8, 3]}
outputs:
  - {name: image, datatype: UINT8, shape: [-1, 8, 8, 3]}
"""
X = np.arange(999, dtype="<f4").reshape(1, -1)
Y = np.arange(500, dtype="<f4").reshape(1, -1) - 250
WAYS = ("numpy", "torch")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("writers")
    models = {
        "inline": (HANDLER, MODEL.format(executor="inline")),
        "process": (HANDLER, MODEL.format(executor="process")),
        "picture": (PICTURE, PICTURE_MODEL),
    }
    for name, (handler, model) in models.items():
        (root / name).mkdir()
        (root / name / "handler.py").write_text(handler)
        (root / name / "model.yaml").write_text(model)
    with Server(root, start_timeout=200) as running:
        yield running


@pytest.fixture
def stub(server):
    unlimited = [("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(server.grpc, options=unlimited) as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


def over_rest(server, model, way, x=X, binary=True, session=requests):
    """Return x, y and facts of the answer."""
    tensors = {"x": x, "y": Y}
    document = {"parameters": {"way": way}, "inputs": []}
    for name, values in tensors.items():
        entry = {"name": name, "shape": list(values.shape), "datatype": "FP32"}
        if binary:
            entry["parameters"] = {"binary_data_size": values.nbytes}
        else:
            entry["data"] = values.ravel().tolist()
        document["inputs"].append(entry)
    head, headers = json.dumps(document).encode(), {}
    body = head
    if binary:
        headers["Inference-Header-Content-Length"] = str(len(head))
        body += b"".join(values.tobytes() for values in tensors.values())
    url = f"{server.url}/v2/models/{model}/infer"
    answer = session.post(url, data=body, headers=headers, timeout=30)
    assert answer.status_code == 200, answer.text
    outputs = {output["name"]: output for output in answer.json()["outputs"]}
    return [np.array(outputs[n]["data"]).reshape(outputs[n]["shape"]) for n in ("x", "y", "facts")]


def grpc_request(model, way, x=X, identifier="", typed=False):
    request = service_pb2.ModelInferRequest(model_name=model, id=identifier)
    request.parameters["way"].string_param = way
    for name, values in {"x": x, "y": Y}.items():
        entry = request.inputs.add(name=name, datatype="FP32", shape=values.shape)
        if typed:
            entry.contents.fp32_contents.extend(values.ravel().tolist())
        else:
            request.raw_input_contents.append(values.tobytes())
    return request


def arrays(answer):
    raw = answer.raw_output_contents
    x, y, facts = (np.frombuffer(r, t) for r, t in zip(raw, ("<f4", "<f4", "<i8"), strict=True))
    return x.reshape(1, -1), y.reshape(1, -1), facts.reshape(1, -1)


def check(answer, x=X):
    np.testing.assert_array_equal(answer[0], x + 1)
    np.testing.assert_array_equal(answer[1], Y)


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
@pytest.mark.parametrize("model", ["inline", "process"])
@pytest.mark.parametrize("way", WAYS)
def test_over_rest(server, model, way, binary):
    with requests.Session() as session:
        for _ in range(3):
            answer = over_rest(server, model, way, binary=binary, session=session)
            check(answer)
            assert answer[2][0, 0] == 1, "the request's memory is writable"


@pytest.mark.parametrize("model", ["inline", "process"])
@pytest.mark.parametrize("way", WAYS)
def test_over_grpc(stub, model, way):
    seen = set()
    for length in range(8):  # by the length of the id the tensor lies aligned or not
        request = grpc_request(model, way, identifier="i" * length)
        sent = request.SerializeToString()
        answer = arrays(stub.ModelInfer(request))
        check(answer)
        assert request.SerializeToString() == sent
        seen.add(int(answer[2][0, 0]))
    assert seen == {1}, "the request's memory is writable"


@pytest.mark.parametrize("way", WAYS)
def test_over_grpc_with_typed_contents_and_in_a_stream(stub, way):
    requests_ = [grpc_request("inline", way, identifier="i" * n, typed=True) for n in range(4)]
    for request in requests_:
        check(arrays(stub.ModelInfer(request)))
    for answer in stub.ModelStreamInfer(iter(requests_)):
        assert not answer.error_message
        check(arrays(answer.infer_response))


@pytest.mark.parametrize("model", ["inline", "process"])
def test_arrays_kept_for_ever_do_not_change_and_no_other_block_is_lost(server, stub, model):
    with requests.Session() as session:
        for place in range(5):
            x = X * place
            check(over_rest(server, model, "keep", x, session=session), x)
            check(arrays(stub.ModelInfer(grpc_request(model, "keep", x))), x)
        leased = []
        for place in range(30):
            x = X + place
            answer = over_rest(server, model, "numpy", x, session=session)
            check(answer, x)
            leased.append(answer[2][0, 1])
    # Only what the handler keeps stays leased, however many requests come after.
    # The blocks of the last answer may be among them, or given back already.
    assert min(leased[15:]) <= max(leased[:15])


def test_decoded_pictures(server):
    pixels = np.random.default_rng(3).integers(0, 255, (8, 8, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels[:, :, ::-1]).save(file, "PNG")
    raw = file.getvalue()
    entry = {"name": "image", "shape": [1], "datatype": "BYTES"}
    entry["parameters"] = {"binary_data_size": len(raw)}
    head = json.dumps({"inputs": [entry]}).encode()
    url = f"{server.url}/v2/models/picture/infer"
    for _ in range(3):
        answer = requests.post(
            url,
            data=head + raw,
            headers={"Inference-Header-Content-Length": str(len(head))},
            timeout=30,
        )
        assert answer.status_code == 200, answer.text
        got = np.array(answer.json()["outputs"][0]["data"], np.uint8).reshape(pixels.shape)
        np.testing.assert_array_equal(got, pixels + 1)
