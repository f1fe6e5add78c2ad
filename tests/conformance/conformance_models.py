"""The models of the conformance cases, written to disk as a user would write them."""

from pathlib import Path

from tests.support.models import write_model

ADD_HANDLER = """
import numpy as np


def inference(x):
    return {"y": x * 2, "z": np.nan_to_num(x.sum(axis=1), posinf=0, neginf=0).astype(np.int64)}
"""

IMG_HANDLER = """
def inference(image):
    return {"mean": image.astype("float64").mean(axis=(1, 2)).astype("float32")}
"""

PIXELS_HANDLER = 'def inference(image): return {"pixels": image}\n'

ECHO_HANDLER = 'def inference(x): return {"y": x}\n'

PAIR_HANDLER = 'def inference(a, b): return {"difference": a - b}\n'

PARAMETERS_HANDLER = """
import json

from ksrv import BaseHandler


class Parameters(BaseHandler):
    def inference(self, x):
        return x

    def postprocess(self, x):
        return [
            json.dumps(dict(request.parameters), sort_keys=True)
            for request in self.context.batch.requests
            for _ in range(request.rows)
        ]
"""

FIXED_DATATYPES = (
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64",
    "FP16", "BF16", "FP32", "FP64",
)  # fmt: skip


def tensor(name: str, datatype: str, shape: str, extra: str = "") -> str:
    return f"  - {{name: {name}, datatype: {datatype}, shape: {shape}{extra}}}\n"


def write_repository(root: Path) -> None:
    """Write `add`, `img`, `str` and the variants that single cases ask for."""
    write_model(
        root, "add", ADD_HANDLER,
        "inputs:\n" + tensor("x", "FP32", "[-1, 4]")
        + "outputs:\n" + tensor("y", "FP32", "[-1, 4]") + tensor("z", "INT64", "[-1]"),
    )  # fmt: skip
    write_model(
        root, "img", IMG_HANDLER,
        "inputs:\n" + tensor("image", "FP32", "[-1, 8, 8, 3]")
        + "outputs:\n" + tensor("mean", "FP32", "[-1, 3]"),
    )  # fmt: skip
    for name, shape in (("pixels", "[-1, 8, 8, 3]"), ("grey", "[-1, 8, 8, 1]")):
        write_model(
            root, name, PIXELS_HANDLER,
            "inputs:\n" + tensor("image", "FP32", shape)
            + "outputs:\n" + tensor("pixels", "FP32", shape),
        )  # fmt: skip
    write_model(
        root, "nchw", PIXELS_HANDLER,
        "inputs:\n" + tensor("image", "FP32", "[-1, 3, 8, 8]")
        + "outputs:\n" + tensor("pixels", "FP32", "[-1, 3, 8, 8]"),
    )  # fmt: skip
    write_model(
        root, "str", ECHO_HANDLER,
        "inputs:\n" + tensor("x", "BYTES", "[-1]") + "outputs:\n" + tensor("y", "BYTES", "[-1]"),
    )  # fmt: skip
    write_model(
        root, "pair", PAIR_HANDLER,
        "inputs:\n" + tensor("a", "FP32", "[-1, 4]") + tensor("b", "FP32", "[-1, 4]")
        + "outputs:\n" + tensor("difference", "FP32", "[-1, 4]"),
    )  # fmt: skip
    write_model(
        root, "free", ECHO_HANDLER,
        "inputs:\n" + tensor("x", "FP32", "[-1, -1]")
        + "outputs:\n" + tensor("y", "FP32", "[-1, -1]"),
    )  # fmt: skip
    write_model(
        root, "parameters", PARAMETERS_HANDLER,
        "inputs:\n" + tensor("x", "FP32", "[-1, 4]") + "outputs:\n" + tensor("text", "BYTES", "[-1]"),
    )  # fmt: skip
    for datatype in FIXED_DATATYPES:
        write_model(
            root, f"echo_{datatype}", ECHO_HANDLER,
            "inputs:\n" + tensor("x", datatype, "[-1, 4]")
            + "outputs:\n" + tensor("y", datatype, "[-1, 4]"),
        )  # fmt: skip
