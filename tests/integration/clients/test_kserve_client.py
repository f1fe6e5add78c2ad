"""KServe's REST and gRPC clients, and the exact messages that the first puts on the wire.

`kserve` needs a protobuf that tritonclient does not work with, so it runs in a separate Python:
`KSERVE_PYTHON` names one that has the package (`make test-kserve` makes it). Without that the
messages are replayed as the client writes them.
"""

import os
import subprocess
import uuid

import httpx
import numpy as np
import orjson
import pytest

from ksrv.testing import Server
from tests.support.model_files.triton_models import write_echoes, write_witness
from tests.support.paths import ROOT

CLIENT = ROOT / "tests" / "support" / "clients" / "kserve_client.py"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("kserve")
    write_witness(root)
    write_echoes(root)
    with Server(root) as running:
        yield running


@pytest.mark.skipif(
    "KSERVE_PYTHON" not in os.environ, reason="KSERVE_PYTHON names no Python with kserve"
)
def test_the_client_itself(server):
    done = subprocess.run(
        [os.environ["KSERVE_PYTHON"], str(CLIENT), server.url, server.grpc],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.stdout.endswith("done\n"), done.stderr


@pytest.mark.skipif(
    "KSERVE_PYTHON" not in os.environ, reason="KSERVE_PYTHON names no Python with kserve"
)
@pytest.mark.parametrize("order", ["ksrv_messages, kserve", "kserve, ksrv_messages"])
def test_messages_do_not_clash_with_the_clients(tmp_path, order):
    """The private pool, in either order; only the pure-Python part of ksrv is imported there."""
    root = ROOT
    (tmp_path / "ksrv_messages.py").write_text(
        "import importlib.util, pathlib\n"
        f"path = pathlib.Path({str(root)!r}) / 'ksrv/protocol/protobuf.py'\n"
        "spec = importlib.util.spec_from_file_location('messages', path)\n"
        "module = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        "module.message_class('inference.ModelInferRequest')()\n"
    )
    subprocess.run(
        [os.environ["KSERVE_PYTHON"], "-c", f"import {order}"],
        check=True,
        timeout=100,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )


@pytest.fixture
def client(server):
    with httpx.Client(base_url=server.url, timeout=60) as made:
        yield made


def test_health_answers_have_the_fields_that_the_client_reads(client):
    assert client.get("/v2/health/live").json().get("live") is True
    assert client.get("/v2/health/ready").json().get("ready") is True
    assert client.get("/v2/models/witness/ready").json().get("ready") is True


def test_a_json_request_as_it_is_written(client):
    body = {
        "id": str(uuid.uuid4()),
        "model_name": "witness",
        "inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1.0, 2, 3, 4]}],
    }
    answer = client.post("/v2/models/witness/infer", content=orjson.dumps(body))
    assert answer.is_success
    document = orjson.loads(answer.content)
    assert document["id"] == body["id"] and document["model_name"] == "witness"
    assert document["outputs"][0]["data"] == [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("binary", [True, False])
def test_a_binary_request_as_it_is_written(client, binary):
    values = np.array([[0.5, -2.0]], np.float16)
    document = {
        "id": str(uuid.uuid4()),
        "model_name": "echo_FP16",
        "inputs": [
            {
                "name": "x",
                "shape": [1, 2],
                "datatype": "FP16",
                "parameters": {"binary_data_size": 4},
            }
        ],
        "outputs": [{"name": "y", "parameters": {"binary_data": binary}}],
    }
    header = orjson.dumps(document)
    answer = client.post(
        "/v2/models/echo_FP16/infer",
        content=header + values.tobytes(),
        headers={
            "inference-header-content-length": str(len(header)),
            "content-type": "application/octet-stream",
        },
    )
    if not binary:  # it would write the same mistake: FP16 has no JSON form
        assert answer.status_code == 400
        assert "error" in answer.json()
        return
    length = int(answer.headers.get("inference-header-content-length", len(answer.content)))
    told = orjson.loads(answer.content[:length])
    assert told["outputs"][0]["parameters"]["binary_data_size"] == 4
    assert answer.content[length:] == values.tobytes()
