"""Large buffers stay in the heap of a handler's process, and of a worker with `retain_freed_memory`."""

import ctypes
import json
import urllib.request

import pytest

from ksrv.testing import Server

HANDLER = """
import ctypes

import numpy as np

from ksrv import BaseHandler


class Counts(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
        "fordblks", "keepcost")]


class Mapped(BaseHandler):
    def inference(self, x):
        count = ctypes.CDLL(None).mallinfo2
        count.restype = Counts
        before = count().hblks
        held = np.empty(48 << 20, np.uint8)  # another thread's heap maps above 64 MiB in any case
        mapped = count().hblks - before
        assert held.size
        return np.full((len(x), 1), mapped, np.int64)
"""

MODEL = """
handler: handler.py
inputs: [{name: x, datatype: FP32, shape: [-1, 1]}]
outputs: [{name: mapped, datatype: INT64, shape: [-1, 1]}]
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="needs glibc 2.33")
@pytest.mark.parametrize(
    ("executor", "keep", "mapped"),
    [("inline", False, 1), ("inline", True, 0), ("process", False, 0)],
)
def test_a_large_buffer_is_mapped_unless_memory_is_kept(tmp_path, executor, keep, mapped):
    model = tmp_path / "mapped"
    model.mkdir()
    (model / "handler.py").write_text(HANDLER)
    (model / "model.yaml").write_text(f"{MODEL}executor: {executor}\n")
    tensor = {"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [0]}
    with Server(tmp_path, grpc="off", retain_freed_memory=keep) as server:
        request = urllib.request.Request(
            f"{server.url}/v2/models/mapped/infer", json.dumps({"inputs": [tensor]}).encode()
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            found = json.load(answer)["outputs"][0]["data"]
    assert found == [mapped]
