"""Runs a new instance on batches of every size that will be used, before it takes requests.

The data is generated from the model's description: zeros for numbers, a grey JPEG's worth of pixels
for images, empty elements for BYTES. A model whose shapes are open, or which declares no inputs, is
warmed up only by sample files. A sample is a request in JSON as the REST route takes it, without its
binary form; what it fails with fails the load.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ksrv._native import datatype
from ksrv.errors import HandlerFailed, KsrvError, quote
from ksrv.request import BatchInputs, BatchRequest, Element, Tensor
from ksrv.source import ModelConfig
from ksrv.spec import Dimension, ModelSpec, TensorSpec


def batches(spec: ModelSpec, config: ModelConfig, folder: Path) -> Iterator[BatchInputs]:
    """Yield the batches that a new instance runs before it serves.

    Args:
        spec: The model's description.
        config: Its settings.
        folder: Where the paths of sample files begin.

    Raises:
        KsrvError: A sample cannot be read.
    """
    if config.warmup is True:
        if spec.inputs and all(_size_known(entry) for entry in spec.inputs):
            for rows in sizes(spec):
                yield _generated(spec, rows)
    elif config.warmup:
        for name in config.warmup:
            yield _sample(spec, folder / name)


def sizes(spec: ModelSpec) -> list[int]:
    """Return the batch sizes to warm up: every one up to 8, then the powers of two, and the most.

    Args:
        spec: The model's description.
    """
    most = spec.max_batch_size or 1
    if not any(entry.batched for entry in spec.inputs):
        return [1]
    chosen = set(range(1, min(most, 8) + 1)) | {most}
    power = 16
    while power < most:
        chosen.add(power)
        power *= 2
    return sorted(chosen)


def _size_known(entry: TensorSpec) -> bool:
    tail = entry.shape[1:] if entry.batched else entry.shape
    return entry.datatype != "BYTES" and all(_lowest(size) >= 0 for size in tail)


def _lowest(size: Dimension) -> int:
    return size[0] if isinstance(size, tuple) else size


def _generated(spec: ModelSpec, rows: int) -> BatchInputs:
    tensors = {}
    for entry in spec.inputs:
        shape = tuple(_lowest(size) for size in entry.shape)
        if entry.batched:
            shape = (rows, *shape[1:])
        data = np.zeros(shape, np.dtype(datatype.dtype_string(entry.datatype)))
        tensors[entry.name] = Tensor(entry.name, entry.datatype, shape, data)
    if not any(entry.batched for entry in spec.inputs):
        first = next(iter(tensors.values())).shape
        rows = first[0] if first else 1
    return BatchInputs(tensors, rows, [BatchRequest(slice(0, rows), "warm-up")])


def _sample(spec: ModelSpec, path: Path) -> BatchInputs:
    try:
        document = json.loads(path.read_bytes())
        tensors = {tensor.name: tensor for tensor in map(_tensor, document["inputs"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise HandlerFailed(
            f"the warm-up sample {path.name} of the model {spec.name} cannot be read: "
            f"{type(error).__name__}: {error}"
        ) from error
    first = next(iter(tensors.values()), None)
    rows = first.shape[0] if first is not None and first.shape else 1
    return BatchInputs(tensors, rows, [BatchRequest(slice(0, rows), "warm-up")])


def _tensor(fields: dict[str, Any]) -> Tensor:
    name, kind, shape = fields["name"], fields["datatype"], tuple(fields["shape"])
    if kind == "BYTES":
        texts = np.ravel(np.asarray(fields["data"], dtype=object)).tolist()
        elements: list[Element] = [text.encode() for text in texts]
        return Tensor(name, kind, shape, elements)
    if not datatype.is_datatype(kind):
        raise ValueError(f"the input {quote(name)} has the unknown datatype {quote(kind)}")
    data = np.asarray(fields["data"], np.dtype(datatype.dtype_string(kind))).reshape(shape)
    return Tensor(name, kind, shape, data)


__all__ = ["KsrvError", "batches", "sizes"]
