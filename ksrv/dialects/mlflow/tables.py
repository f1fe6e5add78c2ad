"""Turns tensors into what `mlflow.pyfunc` models take, and their predictions into tensors.

Columns of a signature become a DataFrame, its tensors arrays. Predictions are a DataFrame, a Series, an array, a
mapping or a list; each becomes one output, or an output for each column.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from ksrv.dialects.mlflow.signature import OUTPUT
from ksrv.errors import HandlerFailed, InvalidRequest, quote
from ksrv.model.datatypes import NAME_BY_DTYPE, KindMismatch, OutOfRange, cast, widened
from ksrv.model.spec import TensorSpec
from ksrv.request import Array, Element, Tensor

SPARE_COLUMNS = 5000
"""Columns of a table beside twice the inputs of the model. pandas needs time by the square of the columns."""


def check_width(body: bytes, content_type: str, declared: Sequence[TensorSpec]) -> None:
    """Refuse a table whose columns pandas would read for minutes.

    Raises:
        InvalidRequest: The table has far more columns than the model.
    """
    most, width = SPARE_COLUMNS + 2 * len(declared), 0
    if content_type.startswith("text/csv"):
        width = max((line.count(b",") for line in body.splitlines()), default=0) + 1
    elif b"dataframe_records" in body or b"\\u" in body:
        with suppress(ValueError, RecursionError, AttributeError, TypeError):
            records = json.loads(body).get("dataframe_records", ())
            width = len({name for record in records for name in record})
    if width > most:
        raise InvalidRequest(
            f"the table has {width} columns, and the model takes {len(declared) or 'any number'}; the most is {most}"
        )


def model_input(tensors: Mapping[str, Tensor], declared: Sequence[TensorSpec], schema: Any) -> Any:
    """Return the argument of `predict` for the inputs of a request.

    Args:
        declared: The inputs of the model, one for each entry of the schema.
        schema: The `mlflow.types.Schema` of the inputs; None for a model without a signature.

    Raises:
        InvalidRequest: A value is not a text, a date or JSON, as the schema asks.
    """
    import pandas as pd

    if schema is None:
        return _undeclared(tensors)
    if schema.is_tensor_spec() and not schema.has_input_names():
        if len(tensors) != 1:
            raise InvalidRequest(f"the model takes one tensor, and the request has {len(tensors)}")
        return _array(next(iter(tensors.values())))  # any name will do
    given = [
        (tensors[spec.name], column)
        for spec, column in zip(declared, schema.inputs, strict=True)
        if spec.name in tensors
    ]
    if not given:
        known = ", ".join(spec.name for spec in declared)
        raise InvalidRequest(f"the request has none of the inputs {known}")
    if schema.is_tensor_spec():
        return {column.name: _array(tensor) for tensor, column in given}
    columns = {
        index if column.name is None else column.name: _column(tensor, column.type)
        for index, (tensor, column) in enumerate(given)
    }
    try:
        return pd.DataFrame(columns)
    except ValueError as error:
        lengths = {tensor.name: tensor.shape[0] for tensor, _ in given}
        raise InvalidRequest(f"the columns have different lengths: {lengths}") from error


def _undeclared(tensors: Mapping[str, Tensor]) -> Any:
    """Return the argument for a model without a signature: an array of rows, or a DataFrame of columns."""
    import pandas as pd

    arrays = {name: _array(tensor) for name, tensor in tensors.items()}
    if all(array.ndim == 1 for array in arrays.values()):
        return pd.DataFrame(arrays)
    return next(iter(arrays.values())) if len(arrays) == 1 else arrays


def _array(tensor: Tensor) -> Array:
    """Return a tensor as an array; BYTES are texts."""
    if isinstance(tensor.data, np.ndarray):
        return widened(tensor.data, tensor.datatype)
    texts = np.empty(len(tensor.data), object)
    texts[:] = [_text(element, tensor.name) for element in tensor.data]
    return texts.reshape(tensor.shape)


def _column(tensor: Tensor, kind: Any) -> Any:
    """Return the values of a column.

    Args:
        kind: Its `mlflow.types.DataType`, or a composite type, which has no name.
    """
    import pandas as pd

    if isinstance(tensor.data, np.ndarray):
        return tensor.data.reshape(-1)
    kind = getattr(kind, "name", "")
    if kind == "binary":
        return [bytes(element) for element in tensor.data]
    texts = [_text(element, tensor.name) for element in tensor.data]
    if kind not in ("", "datetime"):  # for a column of numbers, MLflow names the types
        return pd.Series(texts, dtype=object)
    try:
        return pd.to_datetime(texts) if kind == "datetime" else [json.loads(text) for text in texts]
    except (ValueError, RecursionError) as error:
        wanted = "ISO 8601 dates" if kind == "datetime" else "JSON texts, one for each row"
        raise InvalidRequest(f"the input {quote(tensor.name)} expects {wanted}: {error}") from None


def _text(element: Element, name: str) -> str:
    try:
        return bytes(element).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the input {quote(name)} expects texts in UTF-8: {error}") from None


def output_tensors(predictions: Any, declared: Sequence[TensorSpec]) -> list[Tensor]:
    """Return the outputs for the predictions of a model.

    Args:
        declared: The outputs of the signature, which give names, and datatypes that can represent the values.

    Raises:
        HandlerFailed: The predictions have no form in KServe v2.
    """
    datatypes = {spec.name: spec.datatype for spec in declared}
    return [
        _tensor(name, values, datatypes.get(name, ""))
        for name, values in _by_name(predictions, [spec.name for spec in declared]).items()
    ]


def _by_name(predictions: Any, declared: Sequence[str]) -> dict[str, Any]:
    """Return the values of each output."""
    import pandas as pd

    if isinstance(predictions, list | tuple):
        if predictions and all(isinstance(row, dict) for row in predictions):
            predictions = pd.DataFrame(list(predictions))
    elif isinstance(predictions, pd.Series) and not declared and predictions.name is not None:
        return {str(predictions.name): predictions}
    if isinstance(predictions, pd.DataFrame):
        predictions = {name: predictions.iloc[:, at] for at, name in enumerate(predictions.columns)}
    if isinstance(predictions, dict):
        found = {str(name): values for name, values in predictions.items()}
        # A lone column without a name, such as 0, has the only name of the signature.
        lone = len(found) == len(declared) == 1
        return dict(zip(declared, found.values(), strict=True)) if lone else found
    if hasattr(predictions, "toarray"):  # a sparse matrix of scipy
        predictions = predictions.toarray()
    columns = np.ndim(predictions) == 2 and len(declared) > 1
    if columns and np.shape(predictions)[1] == len(declared):
        return dict(zip(declared, np.asarray(predictions).T, strict=True))
    return {declared[0] if len(declared) == 1 else OUTPUT: predictions}


def _tensor(name: str, values: Any, wanted: str) -> Tensor:
    """Return an output; its datatype is the wanted datatype if this can represent the values."""
    try:
        array = np.asarray(values)
    except ValueError:  # rows of different lengths
        array = np.empty(len(values), object)
        array[:] = values
    if array.dtype.kind == "M":
        array = np.datetime_as_string(array)
    datatype = NAME_BY_DTYPE.get(array.dtype)
    if datatype is None:
        return Tensor(name, "BYTES", array.shape, [_element(value, name) for value in array.flat])
    if wanted and wanted != datatype:
        # MLflow does not hold a model to the types of its outputs either.
        with suppress(KindMismatch, OutOfRange):
            array, datatype = cast(array, datatype, wanted), wanted
    return Tensor(name, datatype, array.shape, np.ascontiguousarray(array))


def _element(value: Any, name: str) -> bytes:
    """Return a value that is not a number: a text, bytes, or anything else as JSON."""
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    if isinstance(value, str):
        return value.encode("utf-8", "replace")
    try:
        return json.dumps(value, default=_jsonable).encode()
    except (TypeError, ValueError) as error:
        raise HandlerFailed(
            f"the model's output {name!r} has no form in KServe v2: {error}"
        ) from None


def _jsonable(value: Any) -> Any:
    for convert in ("tolist", "isoformat", "model_dump"):  # of numpy, of dates, of pydantic
        if hasattr(value, convert):
            return getattr(value, convert)()
    raise TypeError(f"a {type(value).__name__} has no form in JSON")
