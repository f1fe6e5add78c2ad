"""Python's own types in hints as tensors: `str`, `float`, `list[int]`, `PIL.Image.Image`, and records of such fields.

msgspec checks the values of inputs, so `Literal` and the bounds of `msgspec.Meta` apply to requests.
"""

import dataclasses
import io
import types
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints
from typing import is_typeddict as is_typed_dict

import msgspec
import numpy as np

from ksrv.handlers.declared.tensor_types import TYPES, TensorType
from ksrv.model.datatypes import NAME_BY_DTYPE
from ksrv.model.spec import is_content_type

SCALARS = {str: "Bytes", bytes: "Bytes", bool: "Bool", int: "Int64", float: "Float64"}
_TYPE_OF = {made.datatype: made for name, made in TYPES.items() if name != "Image"}


class PlainType(NamedTuple):
    """How one tensor carries a Python type.

    Attributes:
        hint: The type.
        kind: "texts", "values" (other scalars, and lists of them), "array", "picture", or "json" for all other outputs,
            which `rows.py` makes.
    """

    tensor: TensorType
    hint: Any
    kind: str

    def read(self, cell: Any) -> Any:
        """Return the value of a row of an input.

        Args:
            cell: The row of the input's array, or its only element.

        Raises:
            ValueError: The row has no such value; the text is for the client.
        """
        if self.kind == "array":
            return cell
        if self.kind == "picture":
            from PIL import Image

            return Image.fromarray(cell)
        value = cell.tolist() if isinstance(cell, (np.ndarray, np.generic)) else cell
        return msgspec.convert(_decoded(value) if self.kind == "texts" else value, self.hint)

    def write(self, value: Any) -> Any:
        """Return a row of an output in a form that the answer takes."""
        if self.kind == "json" and not isinstance(value, (str, bytes)):
            return msgspec.json.encode(value, enc_hook=lambda array: array.tolist())
        if self.kind == "picture":
            file = io.BytesIO()
            value.save(file, self.tensor.content_type.partition("/")[2])
            return file.getvalue()
        return value


def _decoded(value: Any) -> Any:
    return str(value, "utf-8") if isinstance(value, bytes) else [_decoded(item) for item in value]


def without_none(hint: Any) -> tuple[Any, bool]:
    """Return a hint without `| None`, and whether it allows None."""
    parts = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    kept = tuple(part for part in parts if part is not types.NoneType)
    return (Union[kept] if kept else hint), len(kept) < len(parts)  # noqa: UP007


def plain_type(hint: Any, *, of_output: bool = False) -> PlainType | None:
    """Return how a tensor carries a type; None if no tensor does.

    Raises:
        TensorTypeError: The type has the content type of a file, and is not a file.
    """
    base, *more = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    named = next((hint for hint in (base, *more) if isinstance(hint, TensorType)), array_type(base))
    content_type = str(next(filter(is_content_type, more), ""))
    scalar = type(get_args(base)[0]) if get_origin(base) is Literal else base
    if named is not None:
        return PlainType(named, hint, "array")
    if getattr(base, "__module__", "") == "PIL.Image" and base.__name__ == "Image":
        picture = TYPES["Image"][-1, -1, 3].prepared(datatype="UINT8")
        file = TYPES["Bytes"].file(content_type or "image/png")
        return PlainType(file if of_output else picture, base, "picture")
    if scalar in SCALARS:
        tensor = TYPES[SCALARS[scalar]]
        tensor = tensor.file(content_type) if content_type else tensor
        return PlainType(tensor, hint, "texts" if scalar is str else "values")
    inner = plain_type(*get_args(base)) if get_origin(base) is list else None
    if inner is None or inner.kind not in ("texts", "values"):
        return None
    return inner._replace(tensor=inner.tensor[-1, *inner.tensor.sizes], hint=hint)


def array_type(hint: Any) -> TensorType | None:
    """Return the tensor type of `np.ndarray`, a vector of FP32 for each row, or of `NDArray[np.int64]`; else None."""
    if hint is not np.ndarray and get_origin(hint) is not np.ndarray:
        return None
    # `NDArray[np.int64]` is `np.ndarray[SHAPE, np.dtype[np.int64]]`. `np.ndarray` alone has no arguments.
    dtype = get_args((*get_args(hint), None, None)[1])
    own = NAME_BY_DTYPE.get(np.dtype(dtype[0])) if dtype and isinstance(dtype[0], type) else None
    return _TYPE_OF[own or "FP32"][-1]


class Field(NamedTuple):
    """A field of a record, or a parameter.

    Attributes:
        name: The name of the tensor.
        attribute: The name of the attribute, or the key of a `TypedDict`.
        required: Whether it has no default.
    """

    name: str
    attribute: str
    hint: Any
    required: bool = True


def record_fields(hint: Any) -> list[Field]:
    """Return the fields of a dataclass, a `msgspec.Struct` or a `TypedDict`; empty for any other type."""
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        found = msgspec.structs.fields(hint)
        return [Field(field.encode_name, field.name, field.type, field.required) for field in found]
    if not (is_typed_dict(hint) or (isinstance(hint, type) and dataclasses.is_dataclass(hint))):
        return []
    hints = get_type_hints(hint, include_extras=True)
    if is_typed_dict(hint):
        return [Field(name, name, hint) for name, hint in hints.items()]
    none = dataclasses.MISSING
    return [
        Field(item.name, item.name, hints[item.name], item.default is item.default_factory is none)
        for item in dataclasses.fields(hint)
        if item.init
    ]
