"""Pads the requests of a batch whose rows have different lengths, and cuts their answers back.

Requests of different lengths are joined where the padding stays within its bound: their lengths fall into one bucket
(`ksrv._native.tensor.padding`), which is part of the batch key. The batch is as long as its longest row needs.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ksrv._native.memory import buffer_pool
from ksrv._native.tensor.padding import LengthBuckets, join_padded
from ksrv.engine.requests.handle import QueuedRequest
from ksrv.engine.requests.validation import buckets_of
from ksrv.model.datatypes import DTYPES
from ksrv.model.input_rules import padding_element
from ksrv.model.spec import ModelSpec, Padding, TensorSpec
from ksrv.request import Array, Tensor


@dataclass(slots=True)
class _Padded:
    """An input that is padded.

    Attributes:
        element: The bytes of one element of the padding.
        one: The bytes of the value of a mask.
    """

    spec: TensorSpec
    dtype: np.dtype[Any]
    element: bytes
    one: bytes


class BatchPadding:
    """The padding of one model's batches.

    Args:
        spec: The model's description, completed by its loader.

    Attributes:
        inputs: The names of the inputs that are padded.
    """

    def __init__(self, spec: ModelSpec) -> None:
        self._buckets = buckets_of(spec)
        self._inputs = [
            _Padded(
                one,
                DTYPES[one.datatype],
                padding_element(one),
                padding_element(_filled_with_ones(one)) if one.mask_of else padding_element(one),
            )
            for one in spec.inputs
            if one.lengths
        ]
        self.inputs = frozenset(one.spec.name for one in self._inputs)

    def of_one_length(
        self,
    ) -> tuple[str, LengthBuckets, dict[str, tuple[bytes, bytes]]] | None:
        """Return what the native server needs to pad rows along one length; None unless the model has exactly one.

        Returns:
            The name of the length, which lengths are joined, and by input the bytes of one element of its padding and
            of a mask that is made.
        """
        if len(self._buckets) != 1:
            return None
        [(name, buckets)] = self._buckets.items()
        return name, buckets, {one.spec.name: (one.element, one.one) for one in self._inputs}

    def join(
        self, handles: Sequence[QueuedRequest], rows: int, lease: Callable[[int], Any]
    ) -> dict[str, Tensor]:
        """Return the padded inputs of a batch, by name.

        Args:
            handles: The requests, in row order; all of them have the same inputs, but for masks.
            rows: How many rows they have together.
            lease: Returns a writable block of at least so many bytes.
        """
        longest = {
            name: buckets.padded(max(handle.lengths.get(name, 0) for handle in handles))
            for name, buckets in self._buckets.items()
        }
        found = {}
        for one in self._inputs:
            tensors = [_tensor(handle, one.spec.name) for handle in handles]
            given = next((tensor for tensor in tensors if tensor is not None), None)
            if given is None and not one.spec.mask_of:
                continue  # an optional input
            tail = _padded_tail(one.spec, given, longest)
            if len(handles) == 1 and given is not None and given.shape[1:] == tail:
                found[one.spec.name] = given  # without a copy, because nothing is padded
                continue
            shape = (rows, *tail)
            out: Array = np.ndarray(
                shape, one.dtype, lease(max(math.prod(shape), 1) * one.dtype.itemsize)
            )
            parts: list[Any] = [
                (handle.rows, handle.lengths[one.spec.mask_of]) if tensor is None else tensor.data
                for handle, tensor in zip(handles, tensors, strict=True)
            ]
            join_padded(parts, out, one.element, one.one)
            buffer_pool.count_copy(out.nbytes)
            found[one.spec.name] = Tensor(one.spec.name, one.spec.datatype, shape, out)
        return found


def _filled_with_ones(tensor: TensorSpec) -> TensorSpec:
    return TensorSpec(tensor.name, tensor.datatype, tensor.shape, pad=Padding(value=1))


def _tensor(handle: QueuedRequest, name: str) -> Tensor | None:
    inputs: Iterable[Tensor] = handle.request.inputs
    return next((tensor for tensor in inputs if tensor.name == name), None)


def _padded_tail(
    spec: TensorSpec, given: Tensor | None, longest: Mapping[str, int]
) -> tuple[int, ...]:
    """Return the dimensions after the first of an input of a batch."""
    if given is None:
        return (longest[spec.mask_of],)
    return tuple(
        longest[name] if name else size
        for name, size in zip(spec.lengths[1:], given.shape[1:], strict=True)
    )


def cut_back(tensor: Tensor, declared: TensorSpec | None, lengths: Mapping[str, int]) -> Tensor:
    """Return an output without what belongs to the padding of its request's rows.

    Args:
        tensor: The rows of one request.
        declared: The declared output, or None.
        lengths: The lengths of the request's rows.
    """
    data = tensor.data
    if declared is None or not declared.lengths or not isinstance(data, np.ndarray):
        return tensor
    shape = tuple(
        min(lengths.get(name, size), size)
        for name, size in zip(declared.lengths, tensor.shape, strict=True)
    )
    if shape == tensor.shape:
        return tensor
    cut = data[tuple(map(slice, shape))]
    if not cut.flags.c_contiguous:
        cut = np.ascontiguousarray(cut)
        buffer_pool.count_copy(cut.nbytes)
    return Tensor(tensor.name, tensor.datatype, shape, cut, tensor.parameters)
