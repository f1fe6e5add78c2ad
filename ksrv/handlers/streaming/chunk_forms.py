"""The forms of a chunk that a handler yields: one value for each row, or the value itself if there is one row."""

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
    """In a chunk, the row of a generator that is exhausted."""


ENDED = RowEnded()
_ABSENT = (type(None), RowEnded)


class Texts:
    """The elements of a BYTES tensor, row by row, and its shape."""

    __slots__ = ("elements", "shape")

    def __init__(self, elements: list[Any], shape: tuple[int, ...]) -> None:
        self.elements = elements
        self.shape = shape


def check_chunk(chunk: Any, rows: int, most_rows: int) -> None:
    """Refuse a chunk without rows for a batch that has, or may have, several.

    Args:
        most_rows: The rows that a batch of joined requests may have.

    Raises:
        HandlerFailed: It is a lone text or number.
    """
    if isinstance(chunk, (*_TEXTS, *_NUMBERS)):
        several = f"batches of up to {most_rows} rows" if most_rows else f"a request of {rows} rows"
        raise HandlerFailed(
            f"the handler yielded a {type(chunk).__name__} for {several}; expected one value for each "
            f"row: `yield [value] * len(batch)`, with None for a row that gets nothing this time"
        )


def of_lone_row(chunk: Any, declared: Mapping[str, TensorSpec]) -> Any:
    """Return a chunk for one row with that row's dimension, if it has been left out.

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
    """Return the rows of a chunk that have no value; only a list may have such."""
    if type(chunk) is not list:
        return set()
    return {row for row, value in enumerate(chunk) if isinstance(value, _ABSENT)}


def with_blanks(values: Any, absent: Collection[int]) -> Any:
    """Return a list of rows whose every row has a value.

    Args:
        absent: The rows that have no value.
    """
    if not absent:
        return values
    present = next((value for value in values if not isinstance(value, _ABSENT)), b"")
    filler = _blank(present)
    return [filler if row in absent else value for row, value in enumerate(values)]


def _blank(value: Any) -> Any:
    """Return a placeholder for a row without a value: of the value's form, without its content.

    The value may be another client's.
    """
    if isinstance(value, np.ndarray) and value.dtype.kind not in "OSU":
        return np.zeros_like(value)
    if isinstance(value, (bool, int, float, np.number, np.bool_)):
        return type(value)(0)
    if isinstance(value, (list, tuple)):
        return [_blank(one) for one in value]
    return value.new_zeros(value.shape) if is_tensor(value) else b""
