"""Reads the tensor types in the type hints of a handler.

A hint declares a tensor if it is a tensor type (`Float32[3]`), or a tensor type in `Annotated`, in which a text such as
"audio/wav" is the content type of an output of files. With `| None`, a request may leave the input out. A hint that
contains a tensor type in another way is refused, because it would look like a declaration and declare nothing. Hints
without tensor types are ignored.
"""

import ast
import builtins
import collections.abc
import dataclasses
import inspect
import linecache
import sys
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, NotRequired, Required, Union, get_args, get_origin, is_typeddict

import ksrv
from ksrv.handlers.declared.tensor_types import TensorType
from ksrv.handlers.imports.folder_modules import HandlerError
from ksrv.model.spec import is_content_type

STREAMS = (
    collections.abc.Iterator,
    collections.abc.Iterable,
    collections.abc.Generator,
    collections.abc.AsyncIterator,
    collections.abc.AsyncIterable,
    collections.abc.AsyncGenerator,
)

_FORMS = "expected a tensor type such as Float32[1000], the same | None, or Annotated[np.ndarray, Float32[1000]]"


class Hints:
    """The hints of one function or class.

    Args:
        owner: The function, or the TypedDict.
    """

    def __init__(self, owner: Any) -> None:
        function = inspect.unwrap(owner) if callable(owner) else owner
        names = getattr(function, "__globals__", None)
        if names is None:
            names = vars(sys.modules.get(getattr(owner, "__module__", ""), ksrv))
        self._names: Mapping[str, Any] = names

    def tensor(self, hint: Any, subject: str) -> TensorType | None:
        """Return the tensor type of a hint; None if the hint names no tensor.

        Args:
            hint: The annotation, which may be a text.
            subject: The name of the annotated thing in errors.

        Raises:
            HandlerError: The hint contains a tensor type in another way.
        """
        found = self._tensor(hint, subject)
        if found is None and self.has_tensor_type(hint):
            raise HandlerError(f"{subject}: {shown(hint)} is not a declaration; {_FORMS}")
        return found

    def outputs(self, hint: Any, subject: str, name: str) -> dict[str, Any]:
        """Return the tensor types that a return hint declares, by output names.

        Args:
            hint: The return annotation.
            subject: The name of the annotated thing in errors.
            name: The name of the output if the hint is one tensor type.

        Raises:
            HandlerError: The hint contains a tensor type in another way.
        """
        hint = self.evaluated(hint, subject)
        if get_origin(hint) in STREAMS:  # each part has the declared outputs
            hint = self.evaluated(get_args(hint)[0], subject)
        found = self._tensor(hint, subject)
        if found is not None and not found.optional:
            return {name: found}
        if is_typeddict(hint):
            return _fields(hint)
        if self.has_tensor_type(hint):
            raise HandlerError(
                f"{subject}: {shown(hint)} is not a declaration; expected a tensor type such as Float32[1000], a "
                f"TypedDict that names several, or an iterator of either"
            )
        return {}

    def evaluated(self, hint: Any, subject: str) -> Any:
        """Return the value of a hint; None for a text that cannot be evaluated.

        Args:
            hint: The annotation.
            subject: The name of the annotated thing in errors.

        Raises:
            HandlerError: A text names a tensor type, and cannot be evaluated.
        """
        for _ in range(2):  # if annotations are postponed, a quoted hint is a text in a text
            # In a TypedDict and in typing's own types.
            hint = getattr(hint, "__forward_arg__", hint)
            if not isinstance(hint, str):
                break
            hint = self._evaluated_text(hint, subject)
        return hint

    def _evaluated_text(self, text: str, subject: str) -> Any:
        try:
            tree = ast.parse(text.strip(), mode="eval")
        except SyntaxError:
            return None  # a text that is not an expression, such as "how many times"
        names = dict(self._names)
        asked = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        if not asked <= names.keys() | vars(builtins).keys():
            names = self._imported_for_checkers() | names
        try:
            return eval(text.strip(), names)
        except Exception as error:  # noqa: BLE001  a hint may name whatever only checkers import
            if any(isinstance(names.get(name), TensorType) for name in asked):
                raise HandlerError(
                    f"{subject}: the hint {text!r} cannot be evaluated ({type(error).__name__}: {error}); {_FORMS}"
                ) from None
            return None

    def _imported_for_checkers(self) -> dict[str, Any]:
        """Return what the file imports from ksrv, also under `if TYPE_CHECKING`."""
        found: dict[str, Any] = {}
        try:
            # The source as it was loaded, because the file on the disk may have changed since.
            tree = ast.parse("".join(linecache.getlines(str(self._names.get("__file__")))))
        except (SyntaxError, ValueError):
            return found
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module == "ksrv" and not node.level:
                for alias in node.names:
                    if alias.name in ksrv.__all__:
                        found[alias.asname or alias.name] = getattr(ksrv, alias.name)
            elif isinstance(node, ast.Import):
                found |= {item.asname or "ksrv": ksrv for item in node.names if item.name == "ksrv"}
        return found

    def _tensor(self, hint: Any, subject: str) -> TensorType | None:
        """Return the tensor type of a hint in one of the allowed forms, or None."""
        hint = self.evaluated(hint, subject)
        if isinstance(hint, TensorType):
            return hint
        arguments = get_args(hint)
        if get_origin(hint) is Annotated:
            found = next((hint for hint in arguments if isinstance(hint, TensorType)), None)
            kind = next(filter(is_content_type, arguments[1:]), None)
            if found is not None and kind is not None:
                found = found.file(kind)
            is_optional = NoneType in get_args(arguments[0])
            return found.or_none() if found is not None and is_optional else found
        if get_origin(hint) in (Union, UnionType) and NoneType in arguments and len(arguments) == 2:
            found = self._tensor(next(hint for hint in arguments if hint is not NoneType), subject)
            return None if found is None else found.or_none()
        return None

    def has_tensor_type(self, hint: Any, depth: int = 4) -> bool:
        """Tell whether a hint is a tensor type, or has a tensor type in its arguments or its fields.

        Args:
            depth: The levels to search below the hint. The search would not end in a class that has itself as a field.
        """
        hint = self.evaluated(hint, "")
        if isinstance(hint, TensorType):
            return True
        if not depth:
            return False
        inner = list(get_args(hint))
        if isinstance(hint, type) and (is_typeddict(hint) or dataclasses.is_dataclass(hint)):
            inner += inspect.get_annotations(hint).values()
        return any(self.has_tensor_type(hint, depth - 1) for hint in inner)


def _fields(hint: Any) -> dict[str, Any]:
    """Return the tensor types of a TypedDict; empty if no field has a tensor type.

    A field without a tensor type is None beside other fields, and the reader of the result refuses it.
    """
    hints = Hints(hint)
    found: dict[str, Any] = {}
    for name, field in inspect.get_annotations(hint).items():
        subject = f"{hint.__name__}.{name}"
        value = hints.evaluated(field, subject)
        if get_origin(value) is Required:
            (value,) = get_args(value)
        if get_origin(value) is NotRequired:
            raise HandlerError(
                f"{subject} is NotRequired; an answer has every declared output: leave the output out of "
                f"{hint.__name__}, or answer it always"
            )
        found[name] = hints.tensor(value, subject)
        if found[name] is not None and found[name].optional:
            raise HandlerError(f"{subject} may be None; an answer has every declared output")
    return found if any(hint is not None for hint in found.values()) else {}


def shown(hint: Any) -> str:
    """Return a hint as its author writes it."""
    text = hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint)
    return text.replace("typing.", "").replace("collections.abc.", "")
