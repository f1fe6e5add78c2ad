"""Rows in JSON: reads the rows of a table that pandas has written, and writes outputs as rows."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ksrv.errors import InvalidRequest, quote
from ksrv.model.spec import ModelSpec
from ksrv.protocol.json_data import B64
from ksrv.protocol.rest import json_values
from ksrv.request import Array, Tensor


def rows_of_table(document: Mapping[str, Any], spec: ModelSpec) -> list[Any] | None:
    """Return the rows of a table as objects, or None for an object that is not a table.

    {"columns": ["age"], "index": [0, 1], "data": [[40], [31]]}     pandas: orient="split"
    {"age": {"0": 40, "1": 31}}                                     pandas: orient="columns"

    Raises:
        InvalidRequest: The columns and the rows do not fit each other.
    """
    names, data = document.get("columns"), document.get("data")
    keys = document.keys()
    if keys in ({"columns", "data"}, {"columns", "index", "data"}) and not any(
        map(spec.input, keys)
    ):
        if not isinstance(names, list) or not isinstance(data, list) or not data:
            raise InvalidRequest("'columns' and 'data' of a table are arrays, and 'data' has rows")
        shown = list(map(str, names))
        for place, row in enumerate(data):
            if not isinstance(row, list) or len(row) != len(names) or len(set(shown)) < len(row):
                raise InvalidRequest(
                    f"row {place} of 'data' must have a value for each of the {len(names)} 'columns', whose names differ"
                )
        return [dict(zip(shown, row, strict=True)) for row in data]
    head, first = next(iter(document.items()), ("", None))
    if not isinstance(first, dict) or not first or first.keys() == {B64}:
        return None
    if spec.input(head) is None and head != "0":
        return None
    for name, column in document.items():
        if not isinstance(column, dict) or column.keys() != first.keys():
            raise InvalidRequest(
                f"the column {quote(name)} does not have the rows of the column {quote(head)}"
            )
    return [{name: column[row] for name, column in document.items()} for row in first]


def numbered_rows(rows: list[Any], spec: ModelSpec) -> list[Any]:
    """Return rows for a model with one matrix: columns without names, which pandas counts from 0, become its rows."""
    matrix = spec.inputs[0] if len(spec.inputs) == 1 else None
    if matrix is None or len(matrix.shape) != 2 or matrix.datatype == "BYTES":
        return rows
    names = [str(place) for place in range(len(rows[0]) if isinstance(rows[0], dict) else 0)]
    if not names or not all(isinstance(row, dict) and list(row) == names for row in rows):
        return rows
    return [{matrix.name: list(row.values())} for row in rows]


def shaped_values(tensor: Tensor, *, as_base64: bool = False) -> Array:
    """Return a tensor's values as an array of its shape, texts as objects.

    Args:
        as_base64: Whether the client asked for BYTES in base64.

    Raises:
        InvalidRequest: JSON cannot represent the values.
    """
    values = json_values(tensor, as_base64=as_base64)
    if isinstance(values, list):
        texts = np.empty(len(values), dtype=object)
        texts[:] = values
        values = texts
    return np.asarray(values).reshape(tensor.shape)


def orjson_form(values: Any) -> Any:
    """Return values in a form that orjson writes, which takes no arrays of texts."""
    is_text = isinstance(values, np.ndarray) and values.dtype == object
    return values.tolist() if is_text else values
