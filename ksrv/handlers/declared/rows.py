"""Serves a function with Python's own types in its hints: `def score(text: str, weight: float = 1.0) -> float`.

The function is called once for each row of a batch. Its parameters, and the fields of parameters that are records, are
the inputs; its return hint declares the outputs. A row that cannot be read, or whose call fails, fails its request
alone.
"""

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterator
from types import UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin, is_typeddict

import msgspec

from ksrv.errors import HandlerFailed, InferenceError, KsrvError, quote
from ksrv.handlers.batch import Batch
from ksrv.handlers.declared.hints import STREAMS, Hints, shown
from ksrv.handlers.declared.plain_types import (
    SCALARS,
    Field,
    PlainType,
    plain_type,
    record_fields,
    without_none,
)
from ksrv.handlers.declared.tensor_types import TYPES, TensorType
from ksrv.handlers.imports.folder_modules import HandlerError
from ksrv.handlers.loading import signature_of
from ksrv.handlers.outputs import DEFAULT_NAME
from ksrv.handlers.streaming.chunk_forms import with_blanks

log = logging.getLogger("ksrv.handlers")

_EXPECTED = (
    "expected str, bytes, bool, int, float, lists of one of these, np.ndarray, PIL.Image.Image, a dataclass or a "
    "msgspec.Struct of these, or a tensor type such as Float32[1000]"
)
_BUILT_IN = {*SCALARS, complex, list, tuple, dict, set, frozenset}
"""Types by which an author means single rows. `_input` refuses the types that no tensor can carry."""


class Parameter(NamedTuple):
    """A parameter of the function.

    Attributes:
        fields: The inputs that it is made from: one, or one for each field of a record.
        record: The type of the record; None for a single input.
    """

    name: str
    fields: list[tuple[Field, PlainType]]
    record: Any = None


def row_function(function: Callable[..., Any]) -> "RowFunction | None":
    """Return a function with Python's own types in its hints as a function of batches; None for any other function.

    Raises:
        HandlerError: A hint has no tensor.
    """
    signature, hints = signature_of(function), Hints(function)
    parameters = [] if signature is None else list(signature.parameters.values())
    subject = "inference: the parameter {!r}"
    found = [hints.evaluated(item.annotation, subject.format(item.name)) for item in parameters]
    # One of Python's own types is enough, unless the hint contains a tensor type, which declares a whole batch.
    plain = any(_is_plain(hint) and not hints.has_tensor_type(hint) for hint in found)
    if signature is None or not plain:
        return None
    name = getattr(function, "__name__", "inference")
    returned = hints.evaluated(signature.return_annotation, f"{name}: the return hint")
    try:
        return RowFunction(function, list(map(_parameter, parameters, found)), returned)
    except (ValueError, TypeError) as error:
        raise HandlerError(f"{name}: {error}") from None


def _is_plain(hint: Any) -> bool:
    """Tell whether a hint contains one of Python's own types, so that the function gets single rows.

    A TypedDict is not a record here, because it declares outputs only.
    """
    base, _ = without_none(hint)
    kinds = get_args(base) if get_origin(base) in (Union, UnionType) else (base,)
    found = plain_type(base)
    if found is not None:
        return found.kind != "array"
    if any((get_origin(kind) or kind) in _BUILT_IN for kind in kinds):
        return True
    return bool(record_fields(base)) and not is_typeddict(base)


def _parameter(parameter: inspect.Parameter, hint: Any) -> Parameter:
    name, empty = parameter.name, parameter.empty
    base, allows_none = without_none(hint)
    if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
        raise ValueError(
            f"the parameter {str(parameter)!r} has no name; declare each input by its name"
        )
    fields = [] if is_typeddict(base) else record_fields(base)
    if not fields:
        field = Field(name, name, hint, parameter.default is empty)
        return Parameter(name, [(field, _input(field, f"the parameter {name!r}"))])
    if parameter.default is not empty or allows_none:
        raise ValueError(
            f"the parameter {name!r} has a default; give it to the fields of {shown(base)}"
        )
    return Parameter(
        name, [(field, _input(field, f"{shown(base)}.{field.name}")) for field in fields], base
    )


def _input(field: Field, subject: str) -> PlainType:
    hint, allows_none = without_none(field.hint)
    if hint is inspect.Parameter.empty:
        raise ValueError(f"{subject} has no type hint; {_EXPECTED}")
    plain = plain_type(hint)
    if plain is None:
        raise ValueError(f"{subject}: {shown(hint)} is not an input; {_EXPECTED}")
    optional = allows_none or not field.required
    return plain._replace(tensor=plain.tensor.or_none()) if optional else plain


class RowFunction:
    """A function of single rows as a function of batches.

    Args:
        returned: The return hint.

    Attributes:
        inputs: The declared inputs.
        outputs: The declared outputs; empty without a return hint.

    Raises:
        ValueError: Two inputs have one name, or the return hint declares no outputs.
    """

    def __init__(
        self, function: Callable[..., Any], parameters: list[Parameter], returned: Any
    ) -> None:
        self._function = function
        self._parameters = parameters
        inputs = [(field.name, plain.tensor) for each in parameters for field, plain in each.fields]
        self.inputs = dict(inputs)
        if len(self.inputs) < len(inputs):
            raise ValueError("two fields or parameters have one name; rename one")
        self._streams = get_origin(returned) in STREAMS
        returned = get_args(returned)[0] if self._streams else returned
        if without_none(returned)[1]:
            raise ValueError("the returned value may be None; an answer has every declared output")
        self._record = bool(record_fields(returned))
        fields = record_fields(returned) or [Field(DEFAULT_NAME, DEFAULT_NAME, returned)]
        # A returned type that no tensor can carry, such as a dict, is answered as a JSON text.
        json = PlainType(TYPES["Bytes"], None, "json")
        self._outputs = [(item, plain_type(item.hint, of_output=True) or json) for item in fields]
        kinds = {output.kind for _, output in self._outputs}
        if self._streams and (self._record or kinds & {"json", "picture"}):
            raise ValueError(
                f"{shown(returned)} is not a value of a stream; yield texts or numbers"
            )
        known = returned is not inspect.Signature.empty
        self.outputs: dict[str, TensorType] = {
            output.name: plain.tensor for output, plain in self._outputs if known
        }

    @property
    def stage(self) -> Callable[[Batch], Any]:
        """The `inference` that runs the function: a coroutine if the function is one."""
        return self._run_async if inspect.iscoroutinefunction(self._function) else self._run

    # The parameter is not called `batch`, because a stage with this parameter would get the batch in addition.
    def _run(self, rows: Batch) -> Any:
        found = [self._call(rows, row) for row in range(rows.rows)]
        if self._streams:
            return [_nothing() if value is None else value for value in found]
        return self._columns(rows, found)

    async def _run_async(self, rows: Batch) -> Any:
        async def wait(row: int) -> Any:
            call = self._call(rows, row)
            try:
                return call if call is None else await call
            except Exception as error:  # noqa: BLE001  fails the request of the row
                return self._fail(rows, row, error)

        return self._columns(rows, await asyncio.gather(*map(wait, range(rows.rows))))

    def _call(self, batch: Batch, row: int) -> Any:
        """Return the function's result for a row; None if its request has failed."""
        try:
            return self._function(**self._arguments(batch, row))
        except Exception as error:  # noqa: BLE001  fails the request of the row
            return self._fail(batch, row, error)

    def _fail(self, batch: Batch, row: int, error: Exception) -> None:
        if not isinstance(error, KsrvError):
            if len(batch.requests) == 1:
                raise error
            log.error("the function failed for one request of a batch", exc_info=error)
            name = type(error).__name__
            error = HandlerFailed(
                f"the function failed with {name}; the server's log has its traceback"
            )
        batch.failures.setdefault(batch.request_of(row), error)

    def _arguments(self, batch: Batch, row: int) -> dict[str, Any]:
        """Return the arguments of a row. An input that was left out has its default, or is None."""
        found: dict[str, Any] = {}
        subject = ""
        try:
            for parameter in self._parameters:
                values = {}
                for field, plain in parameter.fields:
                    subject, array = f"the input {quote(field.name)}", batch.get(field.name)
                    if array is not None:
                        values[field.name] = plain.read(array[row])
                    elif field.required:
                        values[field.name] = None
                if parameter.record is not None:
                    subject = f"the inputs are not a {shown(parameter.record)}"
                    values = {parameter.name: msgspec.convert(values, parameter.record)}
                found |= values
        except ValueError as error:
            text = "the text is not UTF-8" if isinstance(error, UnicodeError) else error
            raise InferenceError(f"{subject}: {text}", 400) from None
        return found

    def _columns(self, batch: Batch, results: list[Any]) -> Any:
        """Return the outputs of all rows by name. A row of a failed request has a placeholder."""
        absent = {row for row in range(batch.rows) if batch.request_of(row) in batch.failures}
        if len(absent) == batch.rows:
            raise next(iter(batch.failures.values()))
        columns = {}
        for field, plain in self._outputs:
            column = [
                None if row in absent else plain.write(self._part(result, field))
                for row, result in enumerate(results)
            ]
            columns[field.name] = with_blanks(column, absent)
        return columns

    def _part(self, result: Any, field: Field) -> Any:
        if not self._record:
            return result
        is_mapping = isinstance(result, dict)
        return result[field.attribute] if is_mapping else getattr(result, field.attribute)


def _nothing() -> Iterator[Any]:
    yield from ()
