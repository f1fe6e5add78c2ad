"""Triton Inference Server (the binary in the nvidia-pytriton wheel) with its Python backend, by PyTriton.

PyTriton declares no ragged inputs, so Triton joins sentences of one length alone.
"""

import logging
import sys
from typing import Any

import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig
from work import OnnxModel, first_ten, padded, pictures

network, forest, text = (
    OnnxModel("network", threads=2),
    OnnxModel("forest"),
    OnnxModel("text", threads=2),
)


@batch
def echo(x: np.ndarray) -> dict[str, np.ndarray]:
    return {"y": x}


@batch
def ten_values(x: np.ndarray) -> dict[str, np.ndarray]:
    return {"y": first_ten(x)}


@batch
def decode(x: np.ndarray) -> dict[str, np.ndarray]:
    return {"y": pictures(list(x[:, 0]))}


@batch
def classify(x: np.ndarray) -> dict[str, np.ndarray]:
    return {"y": network.run(x)}


@batch
def predict(x: np.ndarray) -> dict[str, np.ndarray]:
    return {"y": forest.run(x)}


@batch
def embed(x: np.ndarray) -> dict[str, np.ndarray]:
    return {"y": text.run(*padded(list(x[:, None])))}


MODELS: dict[str, tuple[Any, Any, tuple[int, ...], int, int]] = {
    "w1": (echo, np.float32, (16,), 16, 8),
    "w2": (ten_values, np.float32, (224, 224, 3), 10, 8),
    "w3": (decode, np.bytes_, (1,), 10, 8),
    "w4": (echo, np.float32, (16 << 20,), 16 << 20, 1),
    "w5": (classify, np.float32, (3, 224, 224), 10, 8),
    "w6": (predict, np.float32, (30,), 1, 8),
    "w8": (embed, np.int64, (-1,), 128, 8),
}

if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    http, grpc, metrics = (int(port) for port in sys.argv[1:4])
    config = TritonConfig(
        http_address="127.0.0.1", http_port=http, grpc_address="127.0.0.1", grpc_port=grpc,
        metrics_address="127.0.0.1", metrics_port=metrics,
    )  # fmt: skip
    with Triton(config=config) as triton:
        for name, (infer, dtype, shape, values, rows) in MODELS.items():
            triton.bind(
                model_name=name,
                infer_func=infer,
                inputs=[Tensor(name="x", dtype=dtype, shape=shape)],
                outputs=[Tensor(name="y", dtype=np.float32, shape=(values,))],
                config=ModelConfig(
                    max_batch_size=rows, batcher=DynamicBatcher(max_queue_delay_microseconds=0)
                ),
            )
        triton.serve()
