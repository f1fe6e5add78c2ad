"""Models for tests with real clients: one answers with the request that its handler saw."""

from pathlib import Path

from tests.support.models import ECHO, write_model

WITNESS = """
import json
import time

from ksrv import BaseHandler


class Witness(BaseHandler):
    def preprocess(self, batch):
        return batch["x"]

    def inference(self, x):
        time.sleep(self.context.parameters.get("seconds", 0))
        return x

    def postprocess(self, x):
        seen = []
        for request in self.context.batch.requests:
            told = {
                "id": request.id,
                "parameters": dict(request.parameters),
                "inputs": {name: dict(own) for name, own in request.input_parameters.items()},
                "outputs": {name: dict(own) for name, own in request.output_parameters.items()},
                "header": request.headers.get("x-told"),
            }
            rows = request.rows
            seen += [json.dumps(told).encode()] * rows
        return {"y": x, "seen": seen}
"""

DATATYPES = (
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64",
    "FP16", "BF16", "FP32", "FP64", "BYTES",
)  # fmt: skip

WITNESSED = """
inputs: [{name: x, datatype: FP32, shape: [-1, 4]}]
outputs: [{name: y, datatype: FP32, shape: [-1, 4]}, {name: seen, datatype: BYTES, shape: [-1]}]
labels: labels.txt
"""


def write_witness(root: Path, name: str = "witness", extra: str = "") -> None:
    """A model that answers its input and what its handler saw."""
    folder = write_model(root, name, WITNESS, WITNESSED + extra)
    (folder / "labels.txt").write_text("north\neast\nsouth\nwest\n")


def write_echoes(root: Path) -> None:
    """A model for each datatype that answers rows of any length."""
    for datatype in DATATYPES:
        write_model(
            root,
            f"echo_{datatype}",
            ECHO,
            f"inputs: [{{name: x, datatype: {datatype}, shape: [-1, -1]}}]\n"
            f"outputs: [{{name: y, datatype: {datatype}, shape: [-1, -1]}}]\n",
        )
