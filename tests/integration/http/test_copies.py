"""A raw tensor that arrives alone reaches the handler where it was received."""

import json

import numpy as np
import pytest
import requests

from ksrv.testing import Server
from tests.support.models import write_model

COPIES = """
import numpy as np

from ksrv import BaseHandler
from ksrv._native.memory import buffer_pool


class Copies(BaseHandler):
    def inference(self, x):
        facts = [buffer_pool.copied_bytes(), x.ctypes.data % 64, int(x.flags.writeable), int(x.sum())]
        return {"facts": np.array([facts] * len(x), dtype=np.int64)}
"""

HEADER_LENGTH = "Inference-Header-Content-Length"


@pytest.fixture(scope="module", params=["gthread", "gevent", "ksrv.server.worker:KsrvWorker"])
def server(request, tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    write_model(
        root, "copies", COPIES,
        "inputs: [{name: x, datatype: FP32, shape: [-1, -1]}]\n"
        "outputs: [{name: facts, datatype: INT64, shape: [-1, 4]}]\n",
    )  # fmt: skip
    with Server(root, grpc="off", worker_class=request.param, stop_timeout=1) as running:
        yield running


def facts(server, size, pad, **options):
    values = np.ones((1, size), np.float32)
    entry = {
        "name": "x",
        "datatype": "FP32",
        "shape": [1, size],
        "parameters": {"binary_data_size": values.nbytes},
    }
    header = json.dumps({"id": "i" * pad, "inputs": [entry]}).encode()
    body = header + values.tobytes()
    answer = requests.post(
        f"{server.url}/v2/models/copies/infer",
        data=iter([body]) if options.get("chunked") else body,
        headers={HEADER_LENGTH: str(len(header))},
    )
    assert answer.status_code == 200, answer.text
    return np.array(answer.json()["outputs"][0]["data"]).reshape(-1)


@pytest.mark.differs_by("process", "chunked", why="a process gets a copy, a body in chunks grows")
@pytest.mark.parametrize("size", [5, 150_528, 2_000_000])
@pytest.mark.parametrize("pad", [0, 1, 2, 3, 31])
def test_nothing_is_copied_wherever_the_header_ends(server, size, pad):
    before, *_ = facts(server, 5, 0)
    copied, remainder, writable, total = facts(server, size, pad)
    assert copied == before
    assert (remainder, writable, total) == (0, 1, size)


def test_a_chunked_body_is_aligned_too(server):
    _, remainder, _, total = facts(server, 100_000, 3, chunked=True)
    assert (remainder, total) == (0, 100_000)
