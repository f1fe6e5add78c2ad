"""TensorFlow Serving's Predict beside KServe's ModelInfer, to the same model of one server.

    python benchmarks/grpc/predict.py [--rounds 5]

h2load sends the calls of both methods in turn; figures are CPU time of the server's processes for a call, the median
over the rounds, and the median of the ratios within a round. `content` and `typed` have the values in tensor_content
and float_val; `version` names the version, so that Python reads the call. W1 has a target: 1.5 times ModelInfer.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "load"))
from bench import cpu_seconds
from grpc_load import METHOD, SHAPES, request_of
from servers import write_models

from ksrv.protocol.protobuf import message_class
from ksrv.testing import Server

PREDICT = "/tensorflow.serving.PredictionService/Predict"
CALLS = {"W1": (16, 20_000), "W2": (8, 800)}
"""Streams and calls of a round."""


def predict_of(workload: str, **spec: object) -> bytes:
    """Return a PredictRequest with the tensor in tensor_content, or in float_val with `typed`."""
    array = np.ones(SHAPES[workload], np.float32)
    request = message_class("tensorflow.serving.PredictRequest")()
    request.model_spec.name = workload.lower()
    tensor = request.inputs["x"]
    tensor.dtype = 1  # DT_FLOAT
    for size in array.shape:
        tensor.tensor_shape.dim.add(size=size)
    if spec.get("typed"):
        tensor.float_val.extend(array.ravel().tolist())
    else:
        tensor.tensor_content = array.tobytes()
    if version := spec.get("version"):
        request.model_spec.version.value = version
    encoded: bytes = request.SerializeToString()
    return encoded


def load(server: Server, method: str, body: Path, streams: int, calls: int) -> float:
    """Make calls; returns the server's CPU seconds for a call."""
    before = cpu_seconds(server.pid)
    fields = ("-H", "content-type: application/grpc", "-H", "te: trailers")
    done = subprocess.run(
        ["h2load", "-n", str(calls), "-c", "1", "-m", str(streams), "-w", "30", "-W", "30",
         "-d", body, *fields, f"http://{server.grpc}{method}"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert f"{calls} 2xx" in done.stdout, done.stdout
    return (cpu_seconds(server.pid) - before) / calls


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        write_models(folder / "models")
        server = stack.enter_context(Server(folder / "models", http="127.0.0.1:0"))
        for workload, (streams, calls) in CALLS.items():
            messages = {
                "ModelInfer": (METHOD, request_of(workload)),
                "content": (PREDICT, predict_of(workload)),
                "typed": (PREDICT, predict_of(workload, typed=True)),
                "version": (PREDICT, predict_of(workload, version=1)),
            }
            bodies = {}
            for name, (method, message) in messages.items():
                bodies[name] = method, folder / name
                (folder / name).write_bytes(b"\0" + len(message).to_bytes(4, "big") + message)
            found = [
                {
                    name: load(server, method, body, streams, calls)
                    for name, (method, body) in bodies.items()
                }
                for _ in range(rounds)
            ]
            for name in messages:
                used = statistics.median(one[name] for one in found)
                ratio = statistics.median(one[name] / one["ModelInfer"] for one in found)
                print(f"{workload}  {name:12}{used * 1e6:8.1f} us   {ratio:5.2f} of ModelInfer")


if __name__ == "__main__":
    main()
