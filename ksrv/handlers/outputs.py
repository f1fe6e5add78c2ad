"""Turns the results of a handler into the tensors of the answer.

A result is one of these: a mapping of output names to arrays, tensors or lists; one array or tensor; a
tuple of arrays or tensors in the order of the declared outputs (or a list, if several are declared);
a list with one value for each row.

Declared outputs give the names, the datatypes and the shapes. A value of another datatype is cast
only within its kind: numbers to floats (unless finite values become infinite), integers to
any integer type that can represent every value. A float is never truncated
to an integer, and a number is not used as a BOOL. Without declared outputs, values are sent as they are.
"""

import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import orjson

from ksrv._native.memory import buffer_pool
from ksrv._native.tensor.declared_outputs import DeclaredOutputs
from ksrv.errors import HandlerFailed, PromiseBroken, check_text
from ksrv.handlers.devices.device import bfloat16
from ksrv.handlers.streaming.chunk_forms import Texts, check_chunk, of_lone_row
from ksrv.model.datatypes import DTYPES, NAME_BY_DTYPE, KindMismatch, OutOfRange, cast
from ksrv.model.spec import ModelSpec, TensorSpec, fits
from ksrv.request import Array, Element, ExecutorInputs, Tensor
from ksrv.torch_interop import array_over, is_tensor

DEFAULT_NAME = "output"
NO_INPUTS: Mapping[str, Tensor] = {}
NOT_DECLARED: Mapping[str, TensorSpec] = {}
_REDECLARE = "return what is declared, or change the return hint or outputs: in model.yaml"
_TEXT = (bytes, str, bytearray, memoryview)


class BFloat16Bits:
    """A BF16 output as the array of its 16-bit patterns."""

    def __init__(self, patterns: Array) -> None:
        self.patterns = patterns


class OutputConverter:
    """Reads the results of one model's handler.

    Args:
        fetch: Returns a result with the tensors on a device copied into memory.

    Attributes:
        fixed: A compiled reader for results that are exactly as declared; None unless all outputs have fixed
            dimensions.
    """

    def __init__(self, spec: ModelSpec, fetch: Callable[[Any], Any] | None = None) -> None:
        self._fetch = fetch
        self._declared = {entry.name: entry for entry in spec.outputs}
        self._most_rows = spec.max_batch_size
        fixed = _fixed(spec)
        self.fixed = DeclaredOutputs(fixed) if fixed else None
        # For each length of padded rows, an input that has it and the dimension there.
        self._padded = {
            length: (entry.name, place)
            for entry in spec.inputs
            for place, length in enumerate(entry.lengths)
            if length and not entry.optional
        }
        self._open = not spec.inputs  # whether the model declares no inputs
        # Whether each output needs a row for each row of the inputs. Only a model without a batch dimension may return
        # another number of rows.
        self._counted = spec.counts_rows and (
            not spec.inputs or any(entry.batched for entry in spec.inputs)
        )

    def read_chunk(
        self, chunk: Any, rows: int, explained: bool, inputs: Mapping[str, Tensor]
    ) -> list[Tensor]:
        """Return the tensors of a chunk. In a batch of one row a chunk may leave out the dimension of rows.

        Raises:
            PromiseBroken: The chunk differs from the declared outputs.
            HandlerFailed: The chunk does not fit the batch.
        """
        if explained:
            return self.read(chunk, rows, explained, inputs)
        if rows == 1 and not self._most_rows:
            chunk = of_lone_row(chunk, self._declared)
        else:
            check_chunk(chunk, rows, self._most_rows)
        return self.read(chunk, rows, inputs=inputs)

    def read(
        self,
        result: Any,
        rows: int,
        explained: bool = False,
        inputs: Mapping[str, Tensor] = NO_INPUTS,
    ) -> list[Tensor]:
        """Return the answer's tensors.

        Args:
            explained: Whether this is an explanation, which declared outputs do not describe.

        Returns:
            The tensors in the order of the declared outputs, or else in the order of the result.

        Raises:
            PromiseBroken: The result differs from the declared outputs.
            HandlerFailed: The result does not fit the batch.
        """
        found = None if self.fixed is None or explained else self.fixed.read(result, rows)
        if found is not None:
            return found
        if self._fetch is not None:
            result = self._fetch(result)
        declared = NOT_DECLARED if explained else self._declared
        tensors = []
        for name, value in by_name(result, declared).items():
            entry = declared.get(name)
            tensor = _tensor(name, value, entry)
            shape = tensor.shape
            counted = self._counted and (not shape or shape[0] != rows)
            if counted and not (self._open and _lack_rows(inputs)):
                raise PromiseBroken(
                    f"the handler returned {shape[0] if shape else 'no'} rows in the output "
                    f"{name!r} for a batch of {rows} rows; return one row for each row of the inputs"
                )
            if entry is not None and not fits(shape, entry.shape):
                raise PromiseBroken(
                    f"the handler returned the output {name!r} with the shape {list(shape)}; "
                    f"the declared shape is {entry.wire_shape}; {_REDECLARE}"
                )
            if entry is not None and entry.lengths:
                self._check_lengths(tensor, entry, inputs)
            tensors.append(tensor)
        return tensors

    def by_request(self, result: Any, inputs: ExecutorInputs) -> list[dict[str, Any]] | None:
        """Split a result by the requests of the batch. Return for each request its values by output name.

        Returns:
            The parts, which `read` takes; None if the result does not have one row for each row of the batch.

        Raises:
            KsrvError: A handler may not return such a result.
        """
        values = by_name(result, NOT_DECLARED if inputs.explain else self._declared)
        if any(_count(value) != inputs.rows for value in values.values()):
            return None
        return [
            {name: value[part.slice] for name, value in values.items()} for part in inputs.requests
        ]

    def _check_lengths(
        self, tensor: Tensor, entry: TensorSpec, inputs: Mapping[str, Tensor]
    ) -> None:
        """Refuse an output whose padded length differs from the input's, because its rows could not be cut to their
        lengths.
        """
        for place, length in enumerate(entry.lengths):
            name, at = self._padded.get(length, ("", 0))
            given = inputs.get(name)
            if given is not None and tensor.shape[place] != given.shape[at]:
                raise PromiseBroken(
                    f"the handler returned the output {tensor.name!r} with the shape {list(tensor.shape)}; its "
                    f"dimension {place} is declared as the length {length!r}, which is {given.shape[at]} in the padded "
                    f"batch"
                )


def as_tensor(name: str, value: Any) -> Tensor:
    """Return an array, a torch tensor or a list of texts as a tensor with the datatype of the value.

    Raises:
        HandlerFailed: KServe v2 has no datatype for the value.
    """
    return _tensor(name, value, None)


def _count(value: Any) -> int:
    """Return how many rows a value of a result has; -1 for a value without rows."""
    try:
        return len(value)
    except TypeError:  # a number, an array or a tensor without dimensions
        return -1


def _lack_rows(inputs: Mapping[str, Tensor]) -> bool:
    """Tell whether inputs, of a model that declares none, differ in their first dimension."""
    shapes = [tensor.shape for tensor in inputs.values()]
    return any(not shape or shape[0] != shapes[0][0] for shape in shapes)


def _fixed(spec: ModelSpec) -> list[tuple[str, str, np.dtype[Any], tuple[int, ...]]]:
    """Return name, datatype, dtype and fixed dimensions of each output; empty unless all outputs have fixed
    dimensions.
    """
    found = []
    for entry in spec.outputs:
        tail = tuple(size for size in entry.shape[1:] if isinstance(size, int) and size >= 0)
        fixed = entry.batched and len(tail) + 1 == len(entry.shape)
        if not fixed or entry.datatype in ("BF16", "BYTES"):
            return []
        found.append((entry.name, entry.datatype, DTYPES[entry.datatype], tail))
    return found


def by_name(result: Any, declared: Mapping[str, TensorSpec]) -> dict[str, Any]:
    """Return the values of a result by output name, in the order of the declared outputs."""
    names = list(declared)
    if not isinstance(result, (np.ndarray, Texts)):
        if isinstance(result, Mapping):
            return _ordered(result, names)
        listed = isinstance(result, list) and len(result) == len(names) > 1
        if listed or (isinstance(result, tuple) and not hasattr(result, "_fields")):
            wanted = names or _numbered(len(result))
            if len(wanted) != len(result):
                raise PromiseBroken(
                    f"the handler returned {len(result)} outputs; "
                    f"{len(wanted)} are declared: {', '.join(wanted)}; {_REDECLARE}"
                )
            return dict(zip(wanted, result, strict=True))
        if not (isinstance(result, list) or is_tensor(result)):
            raise HandlerFailed(
                f"the handler returned {_kind(result)}; expected a mapping of output names, "
                f"an array or a tensor, or a list with one value for each row"
            )
    if len(names) > 1:
        raise PromiseBroken(
            f"the handler returned one output; {len(names)} are declared: {', '.join(names)}; "
            f"{_REDECLARE}"
        )
    return {names[0] if names else DEFAULT_NAME: result}


def _ordered(result: Mapping[Any, Any], names: list[str]) -> dict[str, Any]:
    for name in result:
        if not isinstance(name, str):
            raise HandlerFailed(f"the handler returned an output named {name!r}; names are texts")
        try:
            check_text("the name of an output", name)
        except ValueError as error:
            raise HandlerFailed(str(error)) from None
    if not result:
        raise HandlerFailed("the handler returned an empty mapping; expected outputs by name")
    if not names:
        return dict(result)
    if set(names) != set(result):
        raise PromiseBroken(
            f"the handler returned the outputs {', '.join(result)}; declared are {', '.join(names)}; "
            f"{_REDECLARE}"
        )
    return {name: result[name] for name in names}


def _numbered(count: int) -> list[str]:
    return [DEFAULT_NAME] if count == 1 else [f"{DEFAULT_NAME}_{index}" for index in range(count)]


def _tensor(name: str, value: Any, entry: TensorSpec | None) -> Tensor:
    """Return an output as a tensor, cast to the declared datatype."""
    wanted = entry.datatype if entry is not None else None
    if isinstance(value, list):
        nested = wanted == "BYTES" and entry is not None and len(entry.shape) > 1
        value = np.array(value, object) if nested else _from_list(name, value, wanted)
        if entry is not None and isinstance(value, np.ndarray) and not value.size:
            # An empty list has neither a datatype nor the sizes of the lists that it lacks.
            sizes = [max(size, 0) for size in entry.shape[value.ndim :]]
            value = np.empty((*value.shape, *sizes), DTYPES.get(entry.datatype, np.dtype(object)))
    elif not isinstance(value, (np.ndarray, Texts)) and is_tensor(value):
        value = _from_torch(name, value)
    if isinstance(value, Texts):
        return _from_texts(name, value, wanted)
    if isinstance(value, BFloat16Bits):
        return _from_bfloat16(name, value.patterns, wanted)
    if not isinstance(value, np.ndarray):
        raise HandlerFailed(
            f"the handler returned {_kind(value)} as the output {name!r}; "
            f"expected an array, a tensor, or a list with one value for each row"
        )
    _refuse_mask(name, value)
    if value.dtype.kind in "OSU":
        return _from_texts(name, Texts(value.reshape(-1).tolist(), value.shape), wanted)
    return _from_numbers(name, value, wanted)


def _refuse_mask(name: str, value: Any) -> None:
    """Refuse a masked array, because KServe v2 has no mask and clients would take masked values for valid."""
    # numpy imports this module on demand: without it no array is masked.
    masked = sys.modules.get("numpy.ma")
    if masked is not None and isinstance(value, masked.MaskedArray):
        raise HandlerFailed(
            f"the handler returned a masked array as the output {name!r}, and KServe v2 has no masks; return "
            f"array.filled(value), or the mask as another output"
        )


def _from_list(name: str, values: list[Any], wanted: str | None) -> Any:
    """Return an array of numbers if the declared output has numbers, otherwise texts."""
    if wanted not in (None, "BYTES"):
        try:
            array = np.asarray([_as_array(name, value) for value in values])
        except (ValueError, TypeError, OverflowError):
            array = np.empty(0, dtype=object)
        if array.dtype.kind not in "biuf" and values:
            raise HandlerFailed(
                f"the handler returned a list as the output {name!r} whose values make no "
                f"{wanted} array; expected values of one shape, one for each row"
            )
        return array
    elements = [
        value if isinstance(value, _TEXT) else _json(name, row, value)
        for row, value in enumerate(values)
    ]
    return Texts(elements, (len(elements),))


def _json(name: str, row: int, value: Any) -> bytes:
    options = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
    try:
        return orjson.dumps(value, default=_plain, option=options)
    except TypeError as error:
        raise HandlerFailed(
            f"the handler returned a {type(value).__name__} in row {row} of the output {name!r} "
            f"that has no JSON form: {error}; return texts, bytes, numbers, lists or mappings"
        ) from None


def _as_array(name: str, value: Any) -> Any:
    """Return a value of a list as numpy joins it with the others: a tensor as an array, without rounding."""
    _refuse_mask(name, value)
    if not is_tensor(value):
        return value
    tensor = value.detach().cpu().resolve_neg()
    return (tensor.float() if tensor.dtype is bfloat16() else tensor).numpy()


def _plain(value: Any) -> Any:
    """Return a value in a form that orjson can serialise."""
    if is_tensor(value) or isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    if isinstance(value, (int, float, str, list, tuple, dict)) or value is None:
        return value
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode("utf-8", "replace")
    if isinstance(value, (set, frozenset)):
        return list(value)
    raise TypeError(f"{type(value).__name__} is not serialisable")


def _kind(value: Any) -> str:
    """Return how an error names a value that cannot be an output."""
    return "None (is a `return` missing?)" if value is None else f"a {type(value).__name__}"


def _from_torch(name: str, tensor: Any) -> Any:
    """Return the tensor's memory as an array."""
    import torch

    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise HandlerFailed(
            f"the handler returned a {tensor.layout} tensor as the output {name!r}; "
            f"expected a dense tensor, as to_dense() or dequantize() makes it"
        )
    tensor = tensor.cpu()
    if tensor.is_neg() or not tensor.is_contiguous():
        tensor = tensor.resolve_neg().contiguous()
        buffer_pool.count_copy(tensor.nbytes)
    try:
        array = array_over(tensor)
    except TypeError:
        raise HandlerFailed(
            f"the handler returned a {tensor.dtype} tensor as the output {name!r}, "
            f"which KServe v2 cannot carry; convert it, for example with .float()"
        ) from None
    return BFloat16Bits(array) if tensor.dtype is torch.bfloat16 else array


def _from_bfloat16(name: str, patterns: Array, wanted: str | None) -> Tensor:
    wanted = wanted or "BF16"
    array = _cast(name, patterns, "BF16", wanted)
    return Tensor(name, wanted, array.shape, array)


def _from_texts(name: str, texts: Texts, wanted: str | None) -> Tensor:
    if wanted not in (None, "BYTES"):
        raise _misfit(name, "BYTES", wanted)
    elements: list[Element] = []
    for value in texts.elements:
        if isinstance(value, str):
            elements.append(value.encode("utf-8", "surrogatepass"))
        elif isinstance(value, bytes):
            elements.append(value)
        elif isinstance(value, (bytearray, memoryview)):
            elements.append(bytes(value))
        else:
            raise HandlerFailed(
                f"the handler returned an array with a {type(value).__name__} as the output "
                f"{name!r}; an array of objects holds bytes and str only"
            )
    return Tensor(name, "BYTES", texts.shape, elements)


def _from_numbers(name: str, array: Array, wanted: str | None) -> Tensor:
    own = NAME_BY_DTYPE.get(array.dtype)
    if own is None and not array.dtype.isnative:
        return _from_numbers(name, array.astype(array.dtype.newbyteorder("=")), wanted)
    if own is None:
        raise HandlerFailed(
            f"the handler returned a {array.dtype} array as the output {name!r}, "
            f"which KServe v2 cannot carry; convert it, for example with .astype('float32')"
        )
    if wanted is not None and wanted != own:
        array, own = _cast(name, array, own, wanted), wanted
    return Tensor(name, own, array.shape, _in_order(array))


def _in_order(array: Array) -> Array:
    if array.flags.c_contiguous:
        return array
    buffer_pool.count_copy(array.nbytes)
    return array.copy(order="C")


def _cast(name: str, array: Array, own: str, wanted: str) -> Array:
    try:
        return cast(array, own, wanted)
    except KindMismatch:
        raise _misfit(name, own, wanted) from None
    except OutOfRange as error:
        raise HandlerFailed(f"the handler returned in the output {name!r} {error}") from None


def _misfit(name: str, own: str, wanted: str | None) -> PromiseBroken:
    return PromiseBroken(
        f"the handler returned {own} values as the output {name!r}; {wanted} is declared"
    )
