"""IR files of the names and shapes that OpenVINO Model Server's samples ask for, with random weights."""

from pathlib import Path

import numpy as np
import openvino
from openvino import opset13


def resnet(path: Path, classes: int = 1000) -> None:
    """Write a network with the names of the resnet that the samples' README downloads."""
    image = opset13.parameter([-1, 3, 224, 224], np.float32, name="0")
    image.output(0).get_tensor().set_names({"0"})
    mean = opset13.reduce_mean(image, opset13.constant(np.int64([2, 3])), keep_dims=False)
    weights = np.random.default_rng(3).normal(size=(3, classes)).astype(np.float32) / 255
    logits = opset13.matmul(mean, opset13.constant(weights), False, False)
    logits.output(0).get_tensor().set_names({"1463"})
    path.parent.mkdir(parents=True, exist_ok=True)
    openvino.save_model(openvino.Model([logits], [image], "resnet"), path)
