"""The requests that a new instance runs, at every batch size that will be used, before it serves.

They are generated from the model's description (zeros), or come from its sample files:

- `.json`: a request as the REST route takes it, all of it in JSON;
- `.jsonl`: records of requests (`ksrv.records`); only the first 16 are run;
- `.npy`: an array for the model's only input;
- any other file: its bytes, as one image or element of the model's only input.

A model with open shapes, or with BYTES inputs that are not images, can be warmed up by samples
only. A handler may refuse zeros, so an error with zeros is only logged. An
answer that is not what model.yaml declares fails the load, and so does a sample that fails. If
zeros fail, but pass with the channels of images in the other order, model.yaml declares the wrong
order: that fails the load as well.
"""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from ksrv._native.tensor.datatype import NAMES
from ksrv.errors import HandlerFailed, quote
from ksrv.model.datatypes import DTYPES, NAME_BY_DTYPE, cast
from ksrv.model.input_rules import Length, lengths_of, padding_element
from ksrv.model.spec import Dimension, ModelSpec, TensorSpec
from ksrv.records.reading import SUFFIX, read_records
from ksrv.request import (
    WARM_UP,
    Array,
    Element,
    ExecutorInputs,
    InferRequest,
    Tensor,
    single_request,
)

EVERY_SIZE_TO = 8
"""Every batch size up to this is warmed up; above it, only powers of two and the largest."""
SHORT_ROW = 3
"""The length of a row that is padded for a check, if the model takes it."""
MOST_RECORDS = 16
"""Requests of a file of records that are run."""


def generated(spec: ModelSpec) -> InferRequest | None:
    """Return a request of one row of zeros, or None if the description leaves the shape of a row open.

    The handler may call no other model for it (`calls_nobody`). For `samples` it may.
    """
    if not spec.inputs or spec.accepts_any_inputs or not all(map(_is_closed, spec.inputs)):
        return None
    tensors = []
    for entry in spec.inputs:
        shape = tuple(_lowest(size) for size in entry.shape)
        if entry.batched:
            shape = (1, *shape[1:])
        data = np.zeros(shape, DTYPES[entry.datatype])
        tensors.append(Tensor(entry.name, entry.datatype, shape, data))
    return InferRequest(spec.name, spec.version, WARM_UP, tensors, calls_nobody=True)


def unpadded_ones(spec: ModelSpec) -> InferRequest | None:
    """Return a request of one row for the check of the padding of a model whose `pad` is `exact`.

    The row is filled with 1, or with 0 if the padding is 1, because it must differ from the padding.

    Returns:
        The request, whose lengths may be doubled; None for other models, and if the description leaves a shape open.
    """
    lengths = lengths_of(spec.inputs)
    if not any(length.exact and not length.mask for length in lengths.values()):
        return None
    tensors = []
    for entry in spec.inputs:
        shape = [1]
        # An input without lengths gives sizes in place of names: they are not strings, so no length is found.
        for size, name in zip(entry.shape[1:], entry.lengths[1:] or entry.shape[1:], strict=True):
            length = lengths.get(name) if isinstance(name, str) else None
            shape.append(_lowest(size) if length is None else _row_length(size, length))
        if entry.datatype == "BYTES" or not entry.batched or min(shape) < 0:
            return None
        other = 0 if entry.pad is not None and entry.pad.value == 1 else 1
        data = np.full(shape, other, DTYPES[entry.datatype])
        tensors.append(Tensor(entry.name, entry.datatype, tuple(shape), data))
    return InferRequest(spec.name, spec.version, WARM_UP, tensors, calls_nobody=True)


def _row_length(size: Dimension, length: Length) -> int:
    """Return the length of the row to check: `SHORT_ROW` rounded up to a multiple, at least the smallest length."""
    return max(length.multiple * -(-SHORT_ROW // length.multiple), _lowest(size))


def padded(spec: ModelSpec, request: InferRequest, times: int) -> ExecutorInputs | None:
    """Return a request as a batch whose rows are padded along the lengths that `pad` calls exact.

    Args:
        request: A validated request.
        times: The factor by which the padded rows are longer.

    Returns:
        The batch; None if nothing is exact, an input holds images or is a mask that the request leaves out, or the rows
        would be longer than the model takes.
    """
    lengths = lengths_of(spec.inputs)
    exact = {name for name, length in lengths.items() if length.exact and not length.mask}
    if not exact or any(
        times * request.lengths.get(name, 0) > lengths[name].most for name in exact
    ):
        return None
    names = {tensor.name for tensor in request.inputs}
    if any(entry.mask_of and entry.name not in names for entry in spec.inputs):
        return None
    tensors = []
    for tensor in request.inputs:
        entry = spec.input(tensor.name)
        data = tensor.data
        if entry is None or tensor.datatype != entry.datatype:
            return None
        if isinstance(data, np.ndarray) and entry.lengths:
            more = [
                (0, size * (times - 1) if name in exact else 0)
                for size, name in zip(data.shape, entry.lengths, strict=True)
            ]
            filler = np.frombuffer(padding_element(entry), data.dtype)[0]
            data = np.pad(data, more, constant_values=filler)
            tensor = Tensor(tensor.name, tensor.datatype, tuple(data.shape), data)
        tensors.append(tensor)
    return single_request(tensors, tensors[0].shape[0], request)


def swapped_layout(spec: ModelSpec, request: InferRequest) -> ExecutorInputs | None:
    """Return zeros as a batch in which the handler sees the channels of images in the order that is not declared.

    Args:
        request: The request that `generated` returned.

    Returns:
        The batch, or None for a model without image inputs.
    """
    if not _images(spec):
        return None
    tensors = []
    for entry, tensor in zip(spec.inputs, request.inputs, strict=True):
        if entry.image is not None:
            rows, height, width, channels = tensor.shape
            shape = (rows, channels, height, width)
            if entry.image.model_layout == "NCHW":
                # The handler gets a view with the axes moved from NHWC to NCHW: of this shape it is (rows, height,
                # width, channels).
                shape = (rows, width, channels, height)
            data = np.zeros(shape, DTYPES[tensor.datatype])
            tensor = Tensor(tensor.name, tensor.datatype, shape, data)
        tensors.append(tensor)
    return single_request(tensors, 1, request)


def layout_sentence(spec: ModelSpec) -> str:
    """Return the error for a model whose images have the channels at the wrong end, with the setting to write."""
    images = _images(spec)
    layouts = {entry.image.model_layout for entry in images if entry.image is not None}
    names = ", ".join(quote(entry.name) for entry in images)
    declared = " and ".join(sorted(layouts))
    wanted = "NCHW" if layouts == {"NHWC"} else "NHWC"
    return (
        f"the handler fails with the layout {declared} of the input {names} and not with {wanted}; "
        f"write model_layout: {wanted} in its image section"
    )


def samples(spec: ModelSpec, path: Path) -> list[InferRequest]:
    """Return the requests of a sample file.

    Raises:
        HandlerFailed: The file cannot be read as a sample of this model.
    """
    try:
        if path.suffix == SUFFIX:
            return [
                InferRequest(
                    spec.name,
                    spec.version,
                    WARM_UP,
                    [entry.tensor() for entry in record.inputs],
                    parameters=record.request_parameters(),
                )
                for record in read_records(path, MOST_RECORDS)
                if record.failure is None
            ]
        tensors = _tensors(spec, path)
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise HandlerFailed(
            f"the warm-up sample {path.name} of the model {spec.name} cannot be read: "
            f"{type(error).__name__}: {error}"
        ) from error
    return [InferRequest(spec.name, spec.version, WARM_UP, tensors)]


def sizes(spec: ModelSpec) -> list[int]:
    """Return the batch sizes to warm up: 1 to 8, the powers of two, and the largest."""
    most = spec.max_batch_size
    if most <= 1:
        return [1]
    powers = [2**power for power in range(4, most.bit_length()) if 2**power < most]
    return sorted({*range(1, min(most, EVERY_SIZE_TO) + 1), *powers, most})


def _images(spec: ModelSpec) -> list[TensorSpec]:
    return [entry for entry in spec.inputs if entry.image is not None]


def _is_closed(entry: TensorSpec) -> bool:
    tail = entry.shape[1:] if entry.batched else entry.shape
    return entry.datatype != "BYTES" and all(_lowest(size) >= 0 for size in tail)


def _lowest(size: Dimension) -> int:
    return size[0] if isinstance(size, tuple) else size


def _tensors(spec: ModelSpec, path: Path) -> list[Tensor]:
    if path.suffix == ".json":
        return [_json_tensor(fields) for fields in json.loads(path.read_bytes())["inputs"]]
    if len(spec.inputs) != 1:
        raise ValueError(f"the model has {len(spec.inputs)} inputs; only .json names them")
    only = spec.inputs[0]
    if path.suffix == ".npy":
        array = np.load(path, allow_pickle=False)
        data = np.ascontiguousarray(_cast(only.name, array, only.datatype))
        return [Tensor(only.name, only.datatype, array.shape, data)]
    shape = (1,) + (1,) * (0 if only.image else len(only.shape) - 1)
    return [Tensor(only.name, "BYTES", shape, [path.read_bytes()])]


def _json_tensor(fields: dict[str, Any]) -> Tensor:
    name, kind, shape = fields["name"], fields["datatype"], tuple(fields["shape"])
    if kind == "BYTES":
        texts = np.ravel(np.asarray(fields["data"], dtype=object)).tolist()
        elements: list[Element] = [text.encode() for text in texts]
        if len(elements) != math.prod(shape):
            raise ValueError(f"the input {quote(name)} has {len(elements)} texts for {list(shape)}")
        return Tensor(name, kind, shape, elements)
    if kind not in NAMES:
        raise ValueError(f"the input {quote(name)} has the unknown datatype {quote(kind)}")
    data = _cast(name, np.asarray(fields["data"]), kind).reshape(shape)
    return Tensor(name, kind, shape, data)


def _cast(name: str, array: Array, wanted: str) -> Array:
    """Return the numbers of a sample in the datatype of its input."""
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    own = NAME_BY_DTYPE.get(array.dtype)
    if own is None:
        raise ValueError(f"the input {quote(name)} holds {array.dtype}, which is not a datatype")
    try:
        return cast(array, own, wanted)
    except ValueError as error:
        raise ValueError(f"the input {quote(name)}: {error}") from None
