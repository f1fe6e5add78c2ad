"""Trains a small network on scikit-learn's handwritten digits and writes it as an ONNX file, in a few seconds.

The network sees each digit the way the server will hand it over: drawn at some size, stored as a
PNG or JPEG file, decoded, cast to float and resized by areas to 16 x 16.
"""

import warnings
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

SIDE = 16


@dataclass(frozen=True)
class Digit:
    """One held-out digit: its 8 x 8 picture, its file and what it shows."""

    picture: np.ndarray
    file: bytes
    truth: int


def encode(picture: np.ndarray, number: int) -> bytes:
    """Return the picture as a grey PNG or JPEG file of a size that depends on its number."""
    height, width = 20 + number % 23, 20 + number % 19
    drawn = cv2.resize(picture, (width, height), interpolation=cv2.INTER_CUBIC)
    suffix, options = (".png", []) if number % 2 else (".jpg", [cv2.IMWRITE_JPEG_QUALITY, 92])
    return cv2.imencode(suffix, drawn, options)[1].tobytes()


def decode(file: bytes) -> np.ndarray:
    """Return what the server makes of the file: FP32 [16, 16, 1], values 0 to 255."""
    pixels = cv2.imdecode(np.frombuffer(file, np.uint8), cv2.IMREAD_UNCHANGED)
    assert pixels is not None
    return cv2.resize(pixels.astype(np.float32), (SIDE, SIDE), interpolation=cv2.INTER_AREA)[
        ..., np.newaxis
    ]


def held_out_and_training() -> tuple[list[Digit], list[Digit]]:
    """Return the fifth of the digits that is kept for the test, and the rest."""
    digits = load_digits()
    pictures = (digits.images * (255 / 16)).astype(np.uint8)
    numbers = np.arange(len(pictures))
    train, test = train_test_split(numbers, test_size=0.2, random_state=7, stratify=digits.target)

    def drawn(chosen: np.ndarray) -> list[Digit]:
        return [
            Digit(pictures[i], encode(pictures[i], int(i)), int(digits.target[i])) for i in chosen
        ]

    return drawn(test), drawn(train)


def train(digits: list[Digit], file: Path) -> None:
    """Train on `digits` and write the network as ONNX."""
    images = np.stack([decode(digit.file) for digit in digits]).reshape(len(digits), -1) / 255
    model = MLPClassifier((64,), learning_rate_init=3e-3, max_iter=60, tol=0, random_state=7)
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        model.fit(images, [digit.truth for digit in digits])
    onnx.save(exported(model), file)


def exported(model: MLPClassifier) -> onnx.ModelProto:
    """Return the network as ONNX: FP32 [N, 16, 16, 1], values 0 to 255, to a digit and its probability."""
    constants = {"white": np.float32(255), "row": np.array([-1, SIDE * SIDE])}
    constants |= {f"weights{n}": w.astype(np.float32) for n, w in enumerate(model.coefs_)}
    constants |= {f"bias{n}": bias.astype(np.float32) for n, bias in enumerate(model.intercepts_)}
    nodes = [
        helper.make_node("Div", ["image", "white"], ["scaled"]),
        helper.make_node("Reshape", ["scaled", "row"], ["rows"]),
        helper.make_node("Gemm", ["rows", "weights0", "bias0"], ["sums"]),
        helper.make_node("Relu", ["sums"], ["hidden"]),
        helper.make_node("Gemm", ["hidden", "weights1", "bias1"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["probabilities"], axis=1),
        helper.make_node("ArgMax", ["probabilities"], ["digit"], axis=1, keepdims=0),
        helper.make_node("ReduceMax", ["probabilities"], ["probability"], axes=[1], keepdims=0),
    ]
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", SIDE, SIDE, 1])
    digit = helper.make_tensor_value_info("digit", TensorProto.INT64, ["N"])
    probability = helper.make_tensor_value_info("probability", TensorProto.FLOAT, ["N"])
    weights = [
        numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()
    ]
    graph = helper.make_graph(nodes, "digits", [image], [digit, probability], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
