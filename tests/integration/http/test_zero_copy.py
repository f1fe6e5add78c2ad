"""A single raw tensor reaches the handler without a copy, or with one."""

import gzip
import json
from itertools import pairwise

import grpc
import numpy as np
import pytest
import requests
from tritonclient.grpc import service_pb2, service_pb2_grpc

from ksrv.testing import Server

HANDLER = """
import numpy as np
from ksrv._native.memory import buffer_pool


def inference(x):
    owner = x
    while isinstance(owner, np.ndarray):
        owner = owner.base
    if isinstance(owner, memoryview):
        owner = owner.obj
    facts = [x.ctypes.data, buffer_pool.copied_bytes(), int(x.flags.writeable)]
    return {"facts": np.array([facts], np.int64), "owner": [type(owner).__name__]}
"""
MODEL = """
handler: handler.py
inputs:
  - {name: x, datatype: FP32, shape: [-1, -1]}
outputs:
  - {name: facts, datatype: INT64, shape: [-1, 3]}
  - {name: owner, datatype: BYTES, shape: [-1]}
"""
VALUES = np.arange(150_528, dtype="<f4").reshape(1, -1)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("witness")
    for name, model in (("witness", MODEL), ("plain", MODEL.replace("-1, -1]", "-1, 150528]"))):
        (root / name).mkdir()
        (root / name / "handler.py").write_text(HANDLER)
        (root / name / "model.yaml").write_text(model)
    with Server(root) as running:
        yield running


def over_rest(server, blanks=0, model="witness", values=VALUES, *, chunked=False, gzipped=False):
    """Return the facts and the owner. The HTTP server queues requests to `plain` itself."""
    document = {
        "parameters": {"binary_data_output": model == "plain"},
        "inputs": [
            {
                "name": "x",
                "shape": list(values.shape),
                "datatype": "FP32",
                "parameters": {"binary_data_size": values.nbytes},
            }
        ],
    }
    header = json.dumps(document).encode() + b" " * blanks
    body = header + values.tobytes()
    fields = {"Inference-Header-Content-Length": str(len(header))}
    if gzipped:
        body, fields["Content-Encoding"] = gzip.compress(body, 1), "gzip"
    answer = requests.post(
        f"{server.url}/v2/models/{model}/infer",
        data=iter([body]) if chunked else body,
        headers=fields,
        timeout=30,
    )
    if model == "plain":
        facts, owner = (
            answer.content[-24 - 4 - len("Block") :][:24],
            answer.content[-len("Block") :],
        )
        return np.frombuffer(facts, "<i8").tolist(), owner.decode()
    outputs = {output["name"]: output["data"] for output in answer.json()["outputs"]}
    return np.ravel(outputs["facts"]).tolist(), outputs["owner"][0]


def over_grpc(stub, identifier):
    request = service_pb2.ModelInferRequest(model_name="witness", id=identifier)
    request.inputs.add(name="x", datatype="FP32", shape=VALUES.shape)
    request.raw_input_contents.append(VALUES.tobytes())
    answer = stub.ModelInfer(request)
    facts = np.frombuffer(answer.raw_output_contents[0], "<i8").tolist()
    return facts, answer.raw_output_contents[1][4:].decode()


@pytest.mark.parametrize("model", ["witness", "plain"])
def test_over_rest_the_handler_reads_the_receive_buffer(server, model):
    counts = []
    for blanks in range(5):
        (address, copied, writable), owner = over_rest(server, blanks, model)
        assert owner == "Block"
        assert address % 64 == 0
        assert writable == 1
        counts.append(copied)
    # Between two requests, at most the small answer of the first is counted.
    assert all(later - earlier < 256 for earlier, later in pairwise(counts))


@pytest.mark.differs_in_processes("a process gets a copy")
@pytest.mark.parametrize("size", [5, 2_000_000])
def test_nothing_is_copied_wherever_the_header_ends(server, size):
    values = np.ones((1, size), "<f4")
    (_, before, _), _ = over_rest(server, values=values)
    for blanks in (1, 2, 3, 31):
        (address, copied, writable), _ = over_rest(server, blanks, values=values)
        assert (address % 64, copied, writable) == (0, before, 1)


@pytest.mark.differs_in_processes("a process gets a copy")
def test_gzip_body_is_inflated_into_the_handlers_memory(server):
    values = np.random.default_rng(1).integers(0, 9, (1, 2_000_000)).astype("<f4")
    (_, before, _), _ = over_rest(server, values=values)
    for blanks in range(3):
        (address, copied, _), owner = over_rest(server, blanks, values=values, gzipped=True)
        assert (address % 16, owner) == (0, "bytearray")
        assert copied - before < 256
        before = copied


@pytest.mark.parametrize("said", [0, 1, 65_535, 10_000_000, 2**32 - 1])
def test_gzip_body_with_a_wrong_size_is_refused(server, said):
    body = gzip.compress(b" " * 70_000)[:-4] + said.to_bytes(4, "little")
    url, fields = f"{server.url}/v2/models/witness/infer", {"Content-Encoding": "gzip"}
    answer = requests.post(url, data=body, headers=fields, timeout=30)
    assert (answer.status_code, "corrupt" in answer.json()["error"]) == (400, True)


def test_a_chunked_body_is_aligned_too(server):
    (address, _, _), _ = over_rest(server, 3, chunked=True)
    assert address % 64 == 0


def test_over_grpc_the_handler_reads_the_receive_buffer(server):
    """By the length of the id, the tensor has any offset in the message, but is aligned in memory."""
    unlimited = [("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(server.grpc, options=unlimited) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        _, before, _ = over_grpc(stub, "")[0]
        for length in range(1, 9):
            (address, copied, writable), owner = over_grpc(stub, "i" * length)
            assert owner == "Block"
            assert address % 64 == 0
            assert writable == 1
            assert copied - before < 256
            before = copied
