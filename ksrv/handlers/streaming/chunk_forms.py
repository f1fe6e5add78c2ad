"""The forms of a chunk: one intermediate answer of a stream, as a handler's generator yields it.

A chunk is a list with one value for each row of the batch, or anything else that `postprocess` may return. For a batch
of exactly one row, the handler may yield that row's value without the list; `of_lone_row` then adds the row dimension.
In a list, rows without a value in this chunk are None or `ENDED`. `with_blanks` fills these rows, so that the
chunk can be read like a whole answer; `ChunkStream` (`streams.py`) then leaves the filled rows out.
"""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from ksrv.errors import HandlerFailed
from ksrv.model.spec import TensorSpec, fits
from ksrv.request import Array
from ksrv.torch_interop import is_tensor

_TEXTS = (str, bytes, bytearray, memoryview)
_NUMBERS = (bool, int, float, np.generic)


class RowEnded:
    """The type of `ENDED`."""


ENDED = RowEnded()
"""In a chunk, the value of a row whose generator is exhausted."""
_ABSENT = (type(None), RowEnded)


class Texts:
    """The elements of a BYTES tensor in row-major order, and its shape."""

    __slots__ = ("elements", "shape")

    def __init__(self, elements: list[Any], shape: tuple[int, ...]) -> None:
        self.elements = elements
        self.shape = shape


def check_chunk(chunk: Any, rows: int, most_rows: int) -> None:
    """Refuse a single text or number as the chunk of a batch that has, or may have, several rows.

    Args:
        most_rows: The most rows that a batch of joined requests may have; 0 if requests are not joined.

    Raises:
        HandlerFailed: The chunk is a text or a number.
    """
    if isinstance(chunk, (*_TEXTS, *_NUMBERS)):
        several = f"batches of up to {most_rows} rows" if most_rows else f"a request of {rows} rows"
        raise HandlerFailed(
            f"the handler yielded a {type(chunk).__name__} for {several}; expected one value for each "
            f"row: `yield [value] * len(batch)`, with None for a row that gets nothing this time"
        )


def of_lone_row(chunk: Any, declared: Mapping[str, TensorSpec]) -> Any:
    """Return the chunk of a batch of one row, with the row dimension added if the handler left it out.

    Args:
        chunk: The value that the generator yielded: a text, a number, an array, a mapping of output names to these,
            a mapping that becomes the JSON of the only BYTES output, or a form with the row's dimension.
        declared: The declared outputs by name.
    """
    only = next(iter(declared.values())) if len(declared) == 1 else None
    if not isinstance(chunk, _TEXTS) and isinstance(chunk, Mapping):
        if only is not None and only.datatype == "BYTES" and set(chunk) != {only.name}:
            return [chunk]
        return {name: _with_row(value, declared.get(name)) for name, value in chunk.items()}
    return _with_row(chunk, only)


def _with_row(value: Any, output: TensorSpec | None) -> Any:
    """Return a value with the row dimension. Without a declared output, a first dimension of 1 is the row dimension."""
    dimensions = 1 if output is None else len(output.shape)
    if isinstance(value, _TEXTS):
        return Texts([value], (1,) * dimensions)
    if isinstance(value, _NUMBERS):
        return _filled((1,) * dimensions, np.asarray(value).dtype, value)
    if isinstance(value, np.ndarray) or is_tensor(value):
        shape = tuple(value.shape)
        lacks = shape[:1] != (1,) if output is None else not fits(shape, output.shape)
        if lacks and (output is None or fits((1, *shape), output.shape)):
            return value[None]
    return value


def _filled(shape: tuple[int, ...], dtype: np.dtype[Any], value: Any) -> Array:
    array = np.empty(shape, dtype)
    array.reshape(-1)[:] = [value]
    return array


# ---- rows without a value -----------------------------------------------------------------------


def absent_rows(chunk: Any) -> set[int]:
    """Return the rows without a value. Only a list can have such rows."""
    if type(chunk) is not list:
        return set()
    return {row for row, value in enumerate(chunk) if isinstance(value, _ABSENT)}


def with_blanks(values: Any, absent: Collection[int]) -> Any:
    """Return a chunk in which rows without a value have a placeholder.

    Args:
        absent: The rows that have no value.
    """
    if not absent:
        return values
    present = next((value for value in values if not isinstance(value, _ABSENT)), b"")
    filler = _blank(present)
    return [filler if row in absent else value for row, value in enumerate(values)]


def _blank(value: Any) -> Any:
    """Return a placeholder with the type and shape of another row's value.

    It has none of the value's content, because the value may belong to another client.
    """
    if isinstance(value, np.ndarray) and value.dtype.kind not in "OSU":
        return np.zeros_like(value)
    if isinstance(value, (bool, int, float, np.number, np.bool_)):
        return type(value)(0)
    if isinstance(value, (list, tuple)):
        return [_blank(part) for part in value]
    return value.new_zeros(value.shape) if is_tensor(value) else b""
