"""Compares two answers to the same request, output by output: for `ksrv bench --replay` and for shadows."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from ksrv.client.tensors import Array, decode
from ksrv.records.lines import RecordedTensor

Answer: TypeAlias = Mapping[str, Array]


class Incomparable(ValueError):
    """A record cannot be sent again; the text is the reason."""


def array_of(tensor: RecordedTensor) -> Array:
    """Return the values of a recorded tensor.

    Raises:
        Incomparable: The values were left out of the record, or cannot be read.
    """
    if tensor.raw is None:
        raise Incomparable("their images were left out (images: false)")
    try:
        return decode(tensor.datatype, tensor.shape, memoryview(tensor.raw))
    except ValueError as error:
        raise Incomparable(f"a tensor cannot be read: {error}") from None


def answer_of(tensors: Sequence[RecordedTensor]) -> dict[str, Array]:
    """Return the values of an answer's outputs by name.

    Raises:
        Incomparable: See `array_of`.
    """
    return {tensor.name: array_of(tensor) for tensor in tensors}


def difference(expected: Answer, got: Answer, tolerance: float) -> str:
    """Return how an answer differs from the recorded answer; "" if it does not."""
    return next(filter(None, differences(expected, got, tolerance).values()), "")


def differences(expected: Answer, got: Answer, tolerance: float) -> dict[str, str]:
    """Return by output how it differs from the recorded output; "" if it does not.

    Args:
        tolerance: A number may differ from the recorded number R by tolerance * (1 + |R|).

    Returns:
        A text for each recorded output. If the answers have different outputs, each text names both.
    """
    if expected.keys() != got.keys():
        text = f"its outputs are {', '.join(got)}; recorded are {', '.join(expected)}"
        return dict.fromkeys(expected, text) or {"": text}
    return {name: _output(name, wanted, got[name], tolerance) for name, wanted in expected.items()}


def _output(name: str, wanted: Array, found: Array, tolerance: float) -> str:
    if found.shape != wanted.shape:
        return f"the output {name!r} has the shape {list(found.shape)}; recorded is {list(wanted.shape)}"
    if found.dtype != wanted.dtype:
        return f"the output {name!r} holds {found.dtype}; recorded is {wanted.dtype}"
    wrong = _wrong(wanted, found, tolerance)
    if not wrong.any():
        return ""
    index = tuple(map(int, np.argwhere(wrong)[0]))
    return (
        f"the output {name!r} differs in {int(wrong.sum())} of {wrong.size} values; at {list(index)} it is "
        f"{_shown(found[index])}, recorded is {_shown(wanted[index])}"
    )


def _wrong(wanted: Array, found: Array, tolerance: float) -> Array:
    """Return for each value whether it differs. Only floats have a tolerance."""
    if wanted.dtype.kind != "f":
        return np.asarray(wanted != found)
    a, b = wanted.astype(np.float64), found.astype(np.float64)
    close = np.isclose(b, a, rtol=tolerance, atol=tolerance, equal_nan=True)
    return ~close


def _shown(value: Any) -> str:
    return (str(value) if isinstance(value, np.generic) else repr(value))[:60]
