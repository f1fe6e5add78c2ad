"""Makes inputs from plain JSON values, as a person writes them: for the generate route, protocol v1 and forms.

{"age": 40, "city": "Oslo"}                             one row
{"age": [40, 31], "city": ["Oslo", "Rome"]}             rows, by input

The nesting of the lists gives the shape of an input; missing dimensions are 1. Numbers are read by the native reader of
v2's `data`, so that the same text means the same values.
"""

from math import prod
from typing import Any, NamedTuple

import orjson

from ksrv._native.json import number_array
from ksrv._native.json.number_array import NumbersError
from ksrv.errors import InvalidRequest, quote
from ksrv.limits import Limits, show_limit
from ksrv.model.datatypes import BINARY_ONLY, FLOATING, OutOfRange, cast
from ksrv.model.spec import TensorSpec, fits
from ksrv.protocol.error_texts import numbers_fault
from ksrv.protocol.json_data import B64, to_element
from ksrv.protocol.tensors import subject
from ksrv.request import Tensor

MOST_BYTES = 1024 * 1024
"""The most bytes of plain JSON. It is read as Python objects, which take up to thirty times as many bytes."""

_READ_AS = dict.fromkeys(BINARY_ONLY, "FP32")
"""The datatype as which the native reader reads numbers for a datatype that it does not read itself."""


class PlainValue(NamedTuple):
    """An input made from a plain value.

    Attributes:
        tensor: The input.
        has_rows: Whether the value had the row dimension, so that an answer has it, too.
    """

    tensor: Tensor
    has_rows: bool


def read_value(declared: TensorSpec, value: Any, index: int, limits: Limits) -> PlainValue:
    """Return the input for a value, which is either one row, without the row dimension, or several rows.

    Args:
        declared: The input as the model declares it.
        value: A text, a number, a boolean, or nested lists of them.
        index: The index of the input in the request, for errors.

    Raises:
        InvalidRequest: The value is, or contains, anything else.
    """
    values, inner = flat(
        value if isinstance(value, list) else [value], declared.name, index, limits
    )
    given = [len(value), *inner] if isinstance(value, list) else []
    _check_filled(declared.name, given, values)
    if are_files(declared, values):
        tensor = read_tensor(declared.name, declared, given or [1], values, index, limits)
        return PlainValue(tensor, bool(given))
    missing = max(len(declared.shape) - len(given), 0)
    shape = [1] * missing + given
    has_rows = declared.batched and not missing
    # [40, 31] for the shape [-1, 1]: a value for each row, not one row of two values.
    if missing and given and declared.batched and not fits(tuple(shape), declared.shape):
        by_row = [given[0], *[1] * missing, *given[1:]]
        if fits(tuple(by_row), declared.shape):
            shape, has_rows = by_row, True
    tensor = read_tensor(declared.name, declared, shape, values, index, limits)
    return PlainValue(tensor, has_rows)


def read_rows(declared: TensorSpec, rows: list[Any], index: int, limits: Limits) -> Tensor:
    """Return the input for the values of several rows.

    Args:
        declared: The input as the model declares it.
        rows: The value of each row.
        index: The index of the input in the request, for errors.

    Raises:
        InvalidRequest: A value is not a number, text or list of them.
    """
    values, row = flat(rows, declared.name, index, limits)
    _check_filled(declared.name, [len(rows), *row], values)
    missing = max(len(declared.shape) - 1 - len(row), 0)
    if are_files(declared, values):
        missing = 0
    shape = [len(rows), *[1] * missing, *row]
    return read_tensor(declared.name, declared, shape, values, index, limits)


def read_tensor(
    name: str,
    declared: TensorSpec | None,
    shape: list[int],
    values: list[Any],
    index: int,
    limits: Limits,
) -> Tensor:
    """Return a tensor with the values: texts and bytes as BYTES, numbers as the model's datatype.

    Args:
        declared: The input as the model declares it; None if it declares no inputs.
        values: The flat values, as `flat` returns them.
        index: The index of the input in the request, for errors.

    Raises:
        InvalidRequest: A value is neither a text nor a number of the datatype, or the shape has another size.
    """
    owner = subject(name, index)
    is_file = declared is not None and declared.takes_files
    datatype = "FP64" if declared is None else declared.datatype
    if None in values and declared is not None and not has_nan(declared):
        raise InvalidRequest(
            f"{owner} holds null; only floating-point inputs take null, as NaN, and this input takes {datatype}: "
            f"give each row a value"
        )
    if datatype == "BYTES" or (values and isinstance(values[0], str | dict)):
        texts = ["" if value is None else value for value in values]
        elements = [to_element(value, is_file, owner, at) for at, value in enumerate(texts)]
        return Tensor(name, "BYTES", tuple(shape), elements)
    read_as = _READ_AS.get(datatype, datatype)
    try:
        text = memoryview(orjson.dumps(values))
    except orjson.JSONEncodeError:  # orjson writes fewer levels than it reads
        raise InvalidRequest(
            f"{owner}: an object among the numbers is nested above the "
            f"{show_limit('json_depth', limits.json_depth)}"
        ) from None
    count = prod(shape)
    if None in values and declared is not None:
        # pandas and orjson write NaN as null.
        text = memoryview(bytes(text).replace(b"null", b"NaN"))
    try:
        numbers = number_array.read(text, 0, len(text), read_as, count)
    except NumbersError as error:
        raise numbers_fault(error, text, 0, name, index, read_as, count) from None
    if datatype == "FP16":
        try:
            numbers = cast(numbers, read_as, datatype)
        except OutOfRange as error:
            raise InvalidRequest(f"{owner}: {error}") from None
    elif read_as != datatype:
        datatype = read_as  # the engine's validation refuses it, and names the expected datatype
    return Tensor(name, datatype, tuple(shape), numbers.reshape(shape))


def flat(rows: list[Any], name: str, index: int, limits: Limits) -> tuple[list[Any], list[int]]:
    """Return the values of all rows one after the other, and the shape of each row.

    Args:
        name: The name of the input, for errors.
        index: The index of the input in the request, for errors.

    Raises:
        InvalidRequest: The rows differ in their shapes, or are nested too deeply.
    """
    most = min(limits.rank, limits.json_depth)
    shape: list[int] = []
    values = rows
    while any(isinstance(value, list) for value in values):
        shape.append(len(values[0]) if isinstance(values[0], list) else 0)
        if len(shape) >= most:
            limit = "rank" if most == limits.rank else "json_depth"
            raise InvalidRequest(
                f"{subject(name, index)}: a row has more dimensions than the {show_limit(limit, most)}"
            )
        if any(not isinstance(value, list) or len(value) != shape[-1] for value in values):
            raise InvalidRequest(
                f"{subject(name, index)}: the rows are not of one shape; send rows of different shapes as separate "
                "requests"
            )
        values = [inner for value in values for inner in value]
    return values, shape


def has_nan(declared: TensorSpec) -> bool:
    """Tell whether an input accepts null, as NaN or as an empty text."""
    return declared.blank or (not declared.takes_files and declared.datatype in FLOATING)


def are_files(declared: TensorSpec | None, values: list[Any]) -> bool:
    """Tell whether the values are files: texts for an input of images or sounds are base64."""
    takes_files = declared is not None and declared.takes_files
    return takes_files and bool(values) and isinstance(values[0], str | dict)


def _check_filled(name: str, given: list[int], values: list[Any]) -> None:
    """Refuse empty lists, and objects other than base64."""
    if 0 in given:
        raise InvalidRequest(f"the input {quote(name)} is an empty list")
    if isinstance(values[0], dict) and values[0].keys() != {B64}:
        raise InvalidRequest(
            f"the input {quote(name)} holds an object; expected a text, a number, or a list of them"
        )
