"""Pads rows of different lengths so that they fit into one batch, and cuts the padding off the answers.

A length belongs to a bucket (`ksrv._native.tensor.padding`), which is part of the batch key. So only requests of
similar lengths join, and the share of padding has a bound. A batch is as long as its longest row needs. A mask is an
input that marks the values of a row that are not padding; ksrv generates a mask that a request does not have.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ksrv._native.memory import buffer_pool
from ksrv._native.tensor.padding import LengthBuckets
from ksrv.engine.requests.handle import QueuedRequest
from ksrv.engine.requests.validation import buckets_of
from ksrv.model.input_rules import padding_element
from ksrv.model.spec import ModelSpec, Padding, TensorSpec
from ksrv.request import InferRequest, Tensor


class RowForm(NamedTuple):
    """The form that the rows of one input have in a batch.

    Attributes:
        tail: The dimensions after the first, with padding; None for a tensor that is not copied into the batch:
            elements of BYTES, or an array without dimensions.
        padding: The bytes of one padding element; b"" if the rows are not padded.
        one: The bytes of the mask element that marks a value (a 1); b"" if the rows are not padded.
        length: For a mask, the name of the length that it marks; "" for other inputs.
    """

    name: str
    datatype: str
    tail: tuple[int, ...] | None
    padding: bytes
    one: bytes
    length: str


class RowPadding:
    """The padding of one model's rows.

    Args:
        spec: The model's description, completed by its loader.
    """

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec
        self._buckets = buckets_of(spec)
        self._elements = {
            tensor.name: (
                padding_element(tensor),
                padding_element(_filled_with_ones(tensor) if tensor.mask_of else tensor),
            )
            for tensor in spec.inputs
            if tensor.lengths
        }

    def of_one_length(self) -> tuple[str, LengthBuckets, dict[str, tuple[bytes, bytes]]] | None:
        """Return what the native server needs to pad rows; None unless the model has exactly one length.

        Returns:
            The name of the length, its buckets, and for each input the bytes of one padding element, and of one element
            of a generated mask.
        """
        if len(self._buckets) != 1:
            return None
        [(name, buckets)] = self._buckets.items()
        return name, buckets, self._elements

    def changes(self, request: InferRequest) -> bool:
        """Return whether a batch of only this request needs padding or a mask."""
        given = {tensor.name for tensor in request.inputs}
        return any(spec.mask_of and spec.name not in given for spec in self._spec.inputs) or any(
            self._buckets[name].padded(length) != length for name, length in request.lengths.items()
        )

    def forms(self, handles: Sequence[QueuedRequest]) -> list[RowForm]:
        """Return the form of each input of a batch, for requests that were parsed in Python.

        Args:
            handles: The requests. They have the same inputs, except for masks.
        """
        first: InferRequest = handles[0].request
        tensors = {tensor.name: tensor for tensor in in_order(self._spec, first)}
        if not first.lengths:
            return [_form(tensor, self._spec, first) for tensor in tensors.values()]
        longest = {
            name: buckets.padded(max(handle.lengths.get(name, 0) for handle in handles))
            for name, buckets in self._buckets.items()
        }
        forms = []
        for spec in self._spec.inputs:
            tensor = tensors.get(spec.name)
            padding, one = self._elements.get(spec.name, (b"", b""))
            if tensor is not None:
                form = _form(tensor, self._spec, first)
                tail = form.tail
                if padding:
                    sizes = zip(spec.lengths[1:], tensor.shape[1:], strict=True)
                    tail = tuple(longest[name] if name else size for name, size in sizes)
                forms.append(
                    form._replace(tail=tail, padding=padding, one=one, length=spec.mask_of)
                )
            elif spec.mask_of:
                tail = (longest[spec.mask_of],)
                forms.append(RowForm(spec.name, spec.datatype, tail, padding, one, spec.mask_of))
        return forms


def in_order(spec: ModelSpec, request: InferRequest) -> list[Tensor]:
    """Return a request's inputs in the order in which the model declares them.

    Inputs that are not the declared inputs, such as the inputs of a dialect's request, keep their order.
    """
    if len(request.inputs) < 2 or not spec.inputs or spec.accepts_any_inputs or request.dialect:
        return request.inputs
    by_name = {tensor.name: tensor for tensor in request.inputs}
    return [by_name[declared.name] for declared in spec.inputs if declared.name in by_name]


def _form(tensor: Tensor, spec: ModelSpec, request: InferRequest) -> RowForm:
    """Return the form of the rows of a tensor without padding."""
    name, datatype, tail = tensor.name, tensor.datatype, None
    images = (request.images or {}).get(name)
    declared = spec.input(name)
    if images is not None and declared is not None:
        datatype, tail = declared.datatype, images.shape[1:]
    elif isinstance(tensor.data, np.ndarray) and tensor.shape:
        tail = tensor.shape[1:]
    return RowForm(name, datatype, tail, b"", b"", "")


def _filled_with_ones(tensor: TensorSpec) -> TensorSpec:
    return TensorSpec(tensor.name, tensor.datatype, tensor.shape, pad=Padding(value=1))


def cut_back(tensor: Tensor, declared: TensorSpec | None, lengths: Mapping[str, int]) -> Tensor:
    """Return an output without the parts that belong to padding of the request's rows.

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
