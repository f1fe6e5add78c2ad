"""A tabular model as a function of its inputs: they become a table, and the library predicts its rows.

A table has one of two forms for clients: an input for each column, or one matrix of numbers (`TableModel.input_specs`).
For the library it is an array of numbers [rows, columns], or a list of columns if some columns have texts.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from ksrv._native.batch.stages import current_context
from ksrv.errors import InferenceError, did_you_mean, quote
from ksrv.loaders.loaded import ModelLoadError, short
from ksrv.loaders.named import NamedModel
from ksrv.model.datatypes import DTYPES, NAME_BY_DTYPE
from ksrv.model.spec import TensorSpec
from ksrv.request import Array

Table: TypeAlias = "Array | list[Array]"
"""An array of numbers [rows, columns], or a list of columns if some have texts."""

PREDICT, PROBABILITIES, TRANSFORM = "predict", "predict_proba", "transform"
"""The outputs: they have the names of the methods of scikit-learn."""
MATRIX = "input"
"""The input that is the whole table."""
MOST_COLUMNS = 100
"""A table of numbers with more columns is one input, although the file names the columns."""
MISSING = ""
"""The element of a column of texts that means a missing value."""


@dataclass(frozen=True, slots=True)
class Feature:
    """A column of the table.

    Attributes:
        name: The name in the file, or `x0`, `x1` and so on.
        text: Whether it has texts; otherwise it has numbers.
        categories: The values of a column of categories, in the order of their codes; empty for any values.
        blank: Whether a text may be missing.
    """

    name: str
    text: bool = False
    categories: tuple[Any, ...] = ()
    blank: bool = False


def unnamed(count: int) -> tuple[str, ...]:
    """Return the names that scikit-learn gives columns without names: x0, x1 and so on."""
    return tuple(f"x{index}" for index in range(count))


class Predictor(ABC):
    """The model of a library.

    Attributes:
        library: `ksrv.dialects.tabular.files` has the names.
        estimator: The library's object.
        features: The columns of the table.
        named: Whether the file names the columns.
        number: The datatype of the numbers that the library takes.
        classes: The classes in the order of the probabilities; None for a model that is not a classifier.
        outputs: The outputs as clients see them.
        refusals: The errors of the library for values that the model cannot take.
    """

    library = ""
    number = "FP32"
    estimator: Any
    features: tuple[Feature, ...]
    named: bool
    classes: Array | None = None
    outputs: tuple[TensorSpec, ...]
    refusals: tuple[type[Exception], ...] = (ValueError,)

    @abstractmethod
    def predict(self, table: Table, outputs: Collection[str]) -> dict[str, Array]:
        """Return the named outputs for each row of a table."""


class TableModel(NamedModel):
    """A tabular model, called with its inputs by name.

    Args:
        predictor: The model of the library.
        declared: The inputs that model.yaml declares; empty for the default form.
        wanted: The outputs to return.

    Attributes:
        predictor: The model of the library.
        estimator: The library's object.
        features: The columns of the table.
        input_specs: The inputs as clients see them.
        output_specs: The outputs as clients see them.
    """

    def __init__(
        self,
        predictor: Predictor,
        declared: Sequence[TensorSpec] = (),
        wanted: Collection[str] = (),
    ) -> None:
        self.predictor, self.estimator = predictor, predictor.estimator
        self.features = predictor.features
        self.input_specs = tuple(declared) or _input_specs(predictor)
        known = predictor.outputs
        self.output_specs = tuple(one for one in known if one.name in wanted) if wanted else known
        self._takes_matrix = _is_matrix(self.input_specs, predictor)
        super().__init__(
            [one.name for one in self.input_specs], [one.name for one in self.output_specs]
        )

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """See `NamedModel.run`."""
        if self._takes_matrix:
            return self.predict(next(iter(feeds.values())))
        columns = [np.asarray(feeds[name]).reshape(-1) for name in self.inputs]
        if set(self.inputs) == {one.name for one in self.features}:
            by_name = dict(zip(self.inputs, columns, strict=True))
            columns = [by_name[one.name] for one in self.features]
        return self._predicted(columns, self.outputs)

    def predict(
        self, table: Array | Mapping[str, Array], outputs: Collection[str] = ()
    ) -> dict[str, Array]:
        """Predict the rows of a table.

        Args:
            table: Numbers [rows, columns], or columns by name: numbers, with NaN for a missing number, or `str`
                objects, with "" for a missing text.
            outputs: The outputs to return; () for all.

        Raises:
            InferenceError: The table has other columns than the model, or values that the model cannot take.
        """
        names = [one.name for one in self.features]
        if not isinstance(table, Mapping):
            array = np.asarray(table)
            if array.ndim != 2 or array.shape[1] != len(names):
                raise InferenceError(
                    f"the table has the shape {list(array.shape)}; the model takes {len(names)} columns, [-1, {len(names)}]"
                )
            columns = list(array.T) if self._has_texts() else array
            return self._predicted(columns, outputs or self.outputs)
        for name in table:
            if name not in names:
                raise InferenceError(
                    f"{quote(name)} is not a column of the model{did_you_mean(name, names)}"
                )
        missing = [name for name in names if name not in table]
        if missing:
            raise InferenceError(f"the table has no column {quote(missing[0])}, and the model does")
        return self._predicted([np.asarray(table[name]) for name in names], outputs or self.outputs)

    def _has_texts(self) -> bool:
        return any(one.text for one in self.features)

    def _predicted(self, columns: Table, outputs: Collection[str]) -> dict[str, Array]:
        """Return the outputs for a table. Its columns are in the order of the features."""
        table = columns if self._has_texts() else self._numbers(columns)
        try:
            return self.predictor.predict(table, outputs)
        except self.predictor.refusals as error:
            context = current_context()
            requests = () if context is None else context.batch.requests
            if len(requests) < 2:
                raise InferenceError(_refusal(error)) from None
        # The values of one request must not fail the others.
        made: dict[int, dict[str, Array]] = {}
        for request in requests:
            try:
                made[request.slice.start] = self.predictor.predict(
                    _rows(table, request.slice), outputs
                )
            except self.predictor.refusals as error:
                context.batch.fail(request.slice.start, _refusal(error))
        answers = {}
        for spec in self.predictor.outputs:
            if spec.name in outputs:
                dtype = DTYPES.get(spec.datatype, np.dtype(object))
                blank = b"" if dtype.kind == "O" else 0
                answer = np.full((context.batch.rows, *spec.wire_shape[1:]), blank, dtype)
                for start, part in made.items():
                    answer[start : start + len(part[spec.name])] = part[spec.name]
                answers[spec.name] = answer
        return answers

    def _numbers(self, columns: Table) -> Array:
        """Return a table of numbers as one array of the library's datatype."""
        dtype = DTYPES[self.predictor.number]
        if isinstance(columns, np.ndarray):
            return np.ascontiguousarray(columns, dtype)
        return joined(columns, dtype)


def joined(columns: Sequence[Array], dtype: Any) -> Array:
    """Return columns as one array [rows, columns]."""
    table = np.empty((len(columns[0]), len(columns)), dtype)
    for index, column in enumerate(columns):
        table[:, index] = column
    return table


def _rows(table: Table, rows: slice) -> Table:
    return table[rows] if isinstance(table, np.ndarray) else [column[rows] for column in table]


def _refusal(error: Exception) -> str:
    return f"the model cannot take the values of the request: {short(error)}"


def _input_specs(predictor: Predictor) -> tuple[TensorSpec, ...]:
    """Return the inputs of a model in their default form: columns if they have names or texts, else the matrix."""
    features, number = predictor.features, predictor.number
    has_texts = any(one.text for one in features)
    if has_texts or (predictor.named and len(features) <= MOST_COLUMNS):
        return tuple(
            TensorSpec(one.name, "BYTES" if one.text else number, (-1,), blank=one.blank)
            for one in features
        )
    return (TensorSpec(MATRIX, number, (-1, len(features))),)


def _is_matrix(inputs: Sequence[TensorSpec], predictor: Predictor) -> bool:
    """Tell whether the inputs are one matrix, and not the columns.

    Raises:
        ModelLoadError: They are neither.
    """
    features = predictor.features
    if len(inputs) == 1 and inputs[0].shape[1:] == (len(features),) and len(inputs[0].shape) == 2:
        if any(one.text for one in features) and inputs[0].datatype != "BYTES":
            text = next(one.name for one in features if one.text)
            raise ModelLoadError(
                f"inputs: the column {quote(text)} has texts, so the table is not a matrix of numbers; declare the columns or "
                f"leave inputs out"
            )
        if len(features) > 1 or inputs[0].name != features[0].name:
            return True
    if len(inputs) == len(features) and all(one.shape[1:] in ((), (1,)) for one in inputs):
        return False
    raise ModelLoadError(
        f"inputs: the model has {len(features)} columns; declare one input of the shape [-1, {len(features)}] or an input "
        f"of the shape [-1] for each column, or leave inputs out"
    )


def as_objects(values: Array) -> Array:
    """Return an answer with texts as objects; any other answer unchanged."""
    return values.astype(object) if values.dtype.kind == "U" else values


def tensor(name: str, values: Array) -> TensorSpec:
    """Return the declaration of an output like given values."""
    datatype = "BYTES" if values.dtype.kind == "O" else NAME_BY_DTYPE[values.dtype]
    return TensorSpec(name, datatype, (-1, *values.shape[1:]))
