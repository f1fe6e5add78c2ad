"""gRPC of a whole server: what handlers see, and how answers are sent."""

import numpy as np
import pytest

from ksrv.testing import Server
from tests.support.models import write_model
from tests.support.wire.grpc_calls import connect, infer_request, stub_infer

SIZES = """
import numpy as np
from ksrv import BaseHandler


class Sizes(BaseHandler):
    def handle(self, batch, context):
        return {
            "small": np.arange(3, dtype=np.float32)[None],
            "text": np.array([[b"first", b"second"]], object),
            "large": np.arange(int(batch["x"][0, 0]), dtype=np.float32)[None],
            "last": np.arange(100, dtype=np.int8)[None],
        }
"""


@pytest.mark.parametrize("executor", ["inline", "process"])
def test_answers_of_any_size_come_whole(tmp_path, executor):
    """Large tensors are sent without a copy; small tensors and texts beside them are copied."""
    write_model(
        tmp_path,
        "sizes",
        SIZES,
        "inputs: [{name: x, datatype: FP32, shape: [-1, 4]}]\n"
        "outputs: [{name: small, datatype: FP32, shape: [-1, -1]}, "
        "{name: text, datatype: BYTES, shape: [-1, 2]}, "
        "{name: large, datatype: FP32, shape: [-1, -1]}, {name: last, datatype: INT8, shape: [-1, 100]}]\n"
        f"executor: {executor}\nwarmup: false\n",
    )
    with Server(tmp_path / "sizes") as server, connect(server.grpc) as channel:
        for size in (1, 16_383, 16_384, 100_000, 5_000_000):
            value = np.array([[size, 0, 0, 0]], np.float32)
            request = infer_request("sizes", ("x", "FP32", [1, 4]), raw=[value.tobytes()])
            answer = stub_infer(channel)(request, timeout=60)
            small, text, large, last = answer.raw_output_contents
            assert np.frombuffer(small, np.float32).tolist() == [0, 1, 2]
            assert text == b"\x05\0\0\0first" + b"\x06\0\0\0second"
            assert large == np.arange(size, dtype=np.float32).tobytes()
            assert last == bytes(range(100))
