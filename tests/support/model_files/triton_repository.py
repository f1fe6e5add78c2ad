"""Folders of a Triton repository, as tests write them, and calls by tritonclient."""

from pathlib import Path
from typing import Any

import tritonclient.grpc
import tritonclient.http

DATATYPES = {
    "float32": "FP32",
    "float16": "FP16",
    "int64": "INT64",
    "int32": "INT32",
    "uint8": "UINT8",
    "object": "BYTES",
}


def write_folder(root: Path, name: str, config: str, version: str = "1") -> Path:
    """A model's folder with its config.pbtxt and one empty version."""
    folder = root / name
    (folder / version).mkdir(parents=True)
    (folder / "config.pbtxt").write_text(config)
    return folder


def infer(
    module: Any, server: Any, model: str, inputs: Any, outputs: Any = None, **options: Any
) -> Any:
    """Call a model with one of tritonclient's clients."""
    address = server.http if module is tritonclient.http else server.grpc
    client = module.InferenceServerClient(address)
    tensors = []
    for name, value in inputs.items():
        tensor = module.InferInput(name, list(value.shape), DATATYPES[str(value.dtype)])
        tensor.set_data_from_numpy(value)
        tensors.append(tensor)
    try:
        return client.infer(model, tensors, outputs=outputs, **options)
    finally:
        client.close()
