"""The work of every server, and the answers; needs numpy, OpenCV and ONNX Runtime in every environment.

| name | request | answer |
|---|---|---|
| W1 | FP32 [1,16] | the tensor itself |
| W2 | FP32 [1,224,224,3], 602 KB | its first ten values |
| W3 | eight JPEGs of 640x427, quality 90, 4:2:0 | of each, resized to 224x224, the first ten values |
| W4 | 64 MiB of FP32 | the tensor itself |
| W5 | FP32 [1,3,224,224] | ten values of a network with ResNet-18's layers and random weights |
| W6 | 30 numbers, over HTTP as JSON | one number of a forest of 100 trees of depth 8, in the same form |
| W7 | a prompt as JSON | 64 words, one after the other |
| W8 | the token ids of a sentence, INT64 [1,n] | 128 values of a network with BERT's layers (by LoadGen alone) |
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np

MODELS = Path(os.environ.get("WORK_MODELS", "."))
WORDS = 64

cv2.setNumThreads(1)


def first_ten(x: np.ndarray) -> np.ndarray:
    """Return the first ten values of each row."""
    return np.ascontiguousarray(x.reshape(len(x), -1)[:, :10])


def pictures(encoded: list[bytes]) -> np.ndarray:
    """Decode and resize pictures to FP32 [n,224,224,3], and return the first ten values of each."""
    batch = np.empty((len(encoded), 224, 224, 3), np.float32)
    for row, data in enumerate(encoded):
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)
        if pixels is None:
            raise ValueError(f"picture {row} cannot be decoded")
        batch[row] = cv2.resize(pixels, (224, 224))
    return first_ten(batch)


def split_pictures(body: bytes) -> list[bytes]:
    """Return the pictures of a body, each after its length in four little-endian bytes."""
    found, at = [], 0
    while at < len(body):
        length = int.from_bytes(body[at : at + 4], "little")
        if at + 4 + length > len(body):
            raise ValueError("a picture is cut")
        found.append(body[at + 4 : at + 4 + length])
        at += 4 + length
    return found


class OnnxModel:
    """A network or a forest; `run` releases the GIL.

    Args:
        name: "network" (W5), "forest" (W6) or "text" (W8).
        threads: Threads of one run.
    """

    def __init__(self, name: str, threads: int = 1) -> None:
        import onnxruntime

        options: Any = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session: Any = onnxruntime.InferenceSession(
            MODELS / f"{name}.onnx", options, providers=["CPUExecutionProvider"]
        )

    def run(self, *inputs: np.ndarray) -> np.ndarray:
        """Return the values of each row; text takes a mask beside its ids."""
        given = dict(zip(("x", "mask"), inputs, strict=False))
        result: np.ndarray = self._session.run(None, given)[0]
        return result


def padded(rows: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Join sentences of [1,n] to ids and their mask, both as long as the longest."""
    ids = np.zeros((len(rows), max(row.shape[1] for row in rows)), np.int64)
    mask = np.zeros(ids.shape, np.bool_)
    for place, row in enumerate(rows):
        ids[place, : row.shape[1]] = row
        mask[place, : row.shape[1]] = True
    return ids, mask


def words() -> Iterator[str]:
    """Yield the words of W7."""
    for index in range(WORDS):
        yield f"word{index} "
