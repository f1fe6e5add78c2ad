"""ksrv: a model repository with a handler for each workload, REST and gRPC on its own HTTP server."""

import os
import sys
import tempfile
from pathlib import Path

HANDLER = """
import numpy as np
from ksrv import BaseHandler
from work import OnnxModel, first_ten, words


class Echo(BaseHandler):
    def inference(self, x):
        return {"y": x}


class TenValues(BaseHandler):
    def inference(self, x):
        return {"y": first_ten(x)}


class Network(BaseHandler):
    def initialize(self, context):
        self.model = OnnxModel("network", threads=2)

    def inference(self, x):
        return {"y": self.model.run(x)}


class Forest(BaseHandler):
    def initialize(self, context):
        self.model = OnnxModel("forest")

    def inference(self, x):
        return {"y": self.model.run(x)}


class Words(BaseHandler):
    def inference(self, prompt):
        yield from words()
"""

MODELS = {
    "w1": ("Echo", "FP32", "16", "FP32, shape: [-1, 16]", ""),
    "w2": ("TenValues", "FP32", "224, 224, 3", "FP32, shape: [-1, 10]", ""),
    "w3": ("TenValues", "FP32", "224, 224, 3", "FP32, shape: [-1, 10]", "batching: {max_batch_size: 16}"),
    "w4": ("Echo", "FP32", "16777216", "FP32, shape: [-1, 16777216]", ""),
    "w5": ("Network", "FP32", "3, 224, 224", "FP32, shape: [-1, 10]", "batching: {max_batch_size: 8}"),
    "w6": ("Forest", "FP32", "30", "FP32, shape: [-1, 1]", ""),
    "w7": ("Words", "BYTES", "", "BYTES, shape: [-1]", ""),
}  # fmt: skip


def write_repository(folder: Path) -> None:
    """Write a model for each workload."""
    for name, (handler, datatype, shape, output, more) in MODELS.items():
        (folder / name).mkdir()
        (folder / name / "handler.py").write_text(HANDLER)
        shape = f"-1, {shape}" if shape else "-1"
        given = "prompt" if name == "w7" else "x"
        (folder / name / "model.yaml").write_text(
            f"handler: handler.py:{handler}\ntimeout_ms: 60000\n"
            f"inputs: [{{name: {given}, datatype: {datatype}, shape: [{shape}]}}]\n"
            f"outputs: [{{name: y, datatype: {output}}}]\n{more}\n"
        )


if __name__ == "__main__":
    made = tempfile.mkdtemp(prefix="ksrv-peers-")
    write_repository(Path(made))
    http, grpc, *tls = sys.argv[1:]
    options = ["--tls-key", tls[0], "--tls-cert", tls[1]] if tls else []
    os.execv(
        sys.executable,
        [sys.executable, "-m", "ksrv", "serve", made, "--http", f"127.0.0.1:{http}",
         "--grpc", f"127.0.0.1:{grpc}", "--drain-delay", "0", *options],
    )  # fmt: skip
