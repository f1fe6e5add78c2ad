"""Plain JSON values, as a person writes them, as the inputs of an infer request.

{"age": 40, "city": "Oslo"}                             one row
{"age": [40, 31], "city": ["Oslo", "Rome"]}             rows, by input
[{"age": 40, "city": "Oslo"}, {"age": 31, ...}]         rows, by record
"""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

from ksrv.errors import InvalidRequest, quote
from ksrv.spec import ModelSpec, TensorSpec

MOST_BYTES = 1024 * 1024
"""Bytes of plain JSON: it is read as objects of Python, which take up to thirty times as many."""


class Entry(NamedTuple):
    """An input of a v2 infer request, made of a plain value.

    Attributes:
        document: The entry of 'inputs'.
        has_rows: Whether the value came with its row dimension.
    """

    document: dict[str, Any]
    has_rows: bool


def entry(declared: TensorSpec, value: Any) -> Entry:
    """Return the input that a value is: a row without its dimension of rows, or rows.

    Args:
        declared: The input as the model declares it.
        value: A text, a number, a boolean, or nested lists of them.

    Raises:
        InvalidRequest: The value is, or holds, something else.
    """
    given = _shape_of(declared.name, value)
    if _are_pictures(declared, value):
        return Entry(_pictures(declared, value), bool(given))
    missing = max(len(declared.shape) - len(given), 0)
    shape = [1] * missing + given
    has_rows = declared.batched and not missing
    # [40, 31] for the shape [-1, 1]: a value for each row, not one row of two values.
    if missing and given and declared.batched and not _fits(shape, declared):
        by_row = [given[0], *[1] * missing, *given[1:]]
        if _fits(by_row, declared):
            shape, has_rows = by_row, True
    return Entry(_document(declared, shape, value), has_rows)


def entry_of_rows(declared: TensorSpec, values: list[Any]) -> dict[str, Any]:
    """Return the input that the values of several rows are.

    Args:
        declared: The input as the model declares it.
        values: The value of each row.

    Raises:
        InvalidRequest: A value is no number, text or list of them.
    """
    first, *row = _shape_of(declared.name, values)
    if _are_pictures(declared, values):
        return _pictures(declared, values)
    missing = max(len(declared.shape) - 1 - len(row), 0)
    return _document(declared, [first, *[1] * missing, *row], values)


def entries_of_records(
    records: list[Any], spec: ModelSpec, names: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Return the inputs that a list of records is.

    Args:
        records: The rows, objects with the same keys.
        spec: The model.
        names: The names of inputs by other names that they may have.

    Raises:
        InvalidRequest: A row is no object, names what is no input, or lacks what another row has.
    """
    if not all(one.batched for one in spec.inputs):
        raise InvalidRequest(
            f"the body is a list, and the model {spec.name} takes no rows; send one JSON object"
        )
    found: dict[str, list[Any]] = {}
    inputs: dict[str, TensorSpec] = {}
    for number, record in enumerate(records):
        if not isinstance(record, dict):
            raise InvalidRequest(
                f"row {number} of the body is no JSON object; expected one such as {_example(spec)}"
            )
        for key, value in record.items():
            name = names.get(key, key)
            declared = spec.input(name)
            if declared is None:
                raise InvalidRequest(f"row {number}: {unknown(key, spec)}")
            inputs[name] = declared
            if value is not None or not declared.optional:
                found.setdefault(name, []).append(value)
        for name, values in found.items():
            if len(values) != number + 1:
                began_here = record.get(name, record.get(_alias(name, names))) is not None
                row, other = (0, number) if began_here else (number, 0)
                raise InvalidRequest(
                    f"row {row} has no {quote(name)}, and row {other} has; the rows of one request have the same inputs"
                )
    return [entry_of_rows(inputs[name], values) for name, values in found.items()]


def _alias(name: str, names: Mapping[str, str]) -> str:
    return next((other for other, own in names.items() if own == name), name)


def unknown(key: str, spec: ModelSpec) -> str:
    """Return the sentence for a key that is no input of a model.

    Args:
        key: The key.
        spec: The model.
    """
    names = [one.name for one in spec.inputs]
    near = get_close_matches(key, names, n=1)
    hint = f"did you mean {quote(near[0])}?" if near else f"it has {', '.join(map(quote, names))}"
    return f"{quote(key)} is no input of the model; {hint}"


def _example(spec: ModelSpec) -> str:
    return "{" + ", ".join(f'"{one.name}": ...' for one in spec.inputs) + "}"


def _document(declared: TensorSpec, shape: list[int], value: Any) -> dict[str, Any]:
    return {
        "name": declared.name,
        "datatype": declared.datatype,
        "shape": shape,
        "data": value if isinstance(value, list) else [value],
    }


def _are_pictures(declared: TensorSpec, value: Any) -> bool:
    """Whether texts stand where the input takes pictures: they are the files in base64."""
    first = value[0] if isinstance(value, list) else value
    return declared.image is not None and isinstance(first, str)


def _pictures(declared: TensorSpec, value: Any) -> dict[str, Any]:
    files = value if isinstance(value, list) else [value]
    return {"name": declared.name, "datatype": "BYTES", "shape": [len(files)], "data": files}


def _fits(shape: list[int], declared: TensorSpec) -> bool:
    return len(shape) == len(declared.shape) and all(
        size in (-1, given) or (isinstance(size, tuple) and size[0] <= given <= size[1])
        for given, size in zip(shape, declared.shape, strict=True)
    )


def _shape_of(name: str, value: Any) -> list[int]:
    shape: list[int] = []
    while isinstance(value, list):
        shape.append(len(value))
        if not value:
            raise InvalidRequest(f"the input {quote(name)} is an empty list")
        value = value[0]
    if value is None or isinstance(value, dict):
        found = "null" if value is None else "an object"
        raise InvalidRequest(
            f"the input {quote(name)} holds {found}; expected a text, a number, or a list of them"
        )
    return shape
