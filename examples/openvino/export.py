"""Write an OpenVINO model with a variable: the running total of what a sequence of requests sent."""

from pathlib import Path

import numpy as np
import openvino
from openvino import opset13 as ops

FOLDER = Path(__file__).parent / "models" / "total" / "1"


def write_total(folder: Path = FOLDER) -> None:
    """Write the model.

    Args:
        folder: The folder of its version.
    """
    amount = ops.parameter([1, 1], np.float32, name="amount")
    amount.output(0).get_tensor().set_names({"amount"})
    zero = ops.constant(np.zeros((1, 1), np.float32))
    before = ops.read_value(zero, "total", openvino.Type.f32, [1, 1])
    after = ops.add(before, amount)
    after.output(0).get_tensor().set_names({"total"})
    model = openvino.Model([ops.result(after)], [ops.assign(after, "total")], [amount], "total")
    folder.mkdir(parents=True, exist_ok=True)
    openvino.save_model(model, folder / "model.xml", compress_to_fp16=False)


if __name__ == "__main__":
    write_total()
