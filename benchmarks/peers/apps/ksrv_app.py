"""ksrv: a model repository with a handler for each workload, REST and gRPC on its HTTP server."""

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
        self.model = OnnxModel("network")

    def inference(self, x):
        return {"y": self.model.run(x)}


class Forest(BaseHandler):
    def initialize(self, context):
        self.model = OnnxModel("forest")

    def inference(self, x):
        return {"y": self.model.run(x)}


class Text(BaseHandler):
    def initialize(self, context):
        self.model = OnnxModel("text", threads=2)

    def inference(self, x, mask):
        return {"y": self.model.run(x, mask)}


class Words(BaseHandler):
    def inference(self, prompt):
        yield from words()
"""

MODELS = {
    "w1": ("Echo", "x, datatype: FP32, shape: [-1, 16]", "FP32, shape: [-1, 16]", ""),
    "w2": ("TenValues", "x, datatype: FP32, shape: [-1, 224, 224, 3]", "FP32, shape: [-1, 10]", ""),
    "w3": ("TenValues", "x, datatype: FP32, shape: [-1, 224, 224, 3], image: {color: RGB}", "FP32, shape: [-1, 10]",
           "batching: {max_batch_size: 16}"),
    "w4": ("Echo", "x, datatype: FP32, shape: [-1, 16777216]", "FP32, shape: [-1, 16777216]", ""),
    "w5": ("Network", "x, datatype: FP32, shape: [-1, 3, 224, 224]", "FP32, shape: [-1, 10]",
           "instances: 2\nbatching: {max_batch_size: 8}"),
    "w6": ("Forest", "x, datatype: FP32, shape: [-1, 30]", "FP32, shape: [-1, 1]", ""),
    "w7": ("Words", "prompt, datatype: BYTES, shape: [-1]", "BYTES, shape: [-1]", ""),
    "w8": ("Text", "x, datatype: INT64, shape: [-1, -1], pad: {mask: mask, waste: 0.5}}, "
                   "{name: mask, datatype: BOOL, shape: [-1, -1]", "FP32, shape: [-1, 128]",
           "batching: {max_batch_size: 8}"),
}  # fmt: skip


def write_repository(folder: Path) -> None:
    """Write a model for each workload."""
    for name, (handler, inputs, output, more) in MODELS.items():
        (folder / name).mkdir()
        (folder / name / "handler.py").write_text(HANDLER)
        (folder / name / "model.yaml").write_text(
            f"handler: handler.py:{handler}\ntimeout_ms: 60000\ninputs: [{{name: {inputs}}}]\n"
            f"outputs: [{{name: y, datatype: {output}}}]\n{more}\n"
        )


if __name__ == "__main__":
    made = tempfile.mkdtemp(prefix="ksrv-peers-")
    write_repository(Path(made))
    http, grpc, *tls = sys.argv[1:]
    options = ["--tls-key", tls[0], "--tls-cert", tls[1]] if tls else []
    os.environ["PYTHONPATH"] += (
        f":{Path(__file__).parents[3]}"  # its environment has what ksrv needs
    )
    os.execv(
        sys.executable,
        [sys.executable, "-m", "ksrv", "serve", made, "--http", f"127.0.0.1:{http}",
         "--grpc", f"127.0.0.1:{grpc}", "--drain-delay", "0", *options],
    )  # fmt: skip
