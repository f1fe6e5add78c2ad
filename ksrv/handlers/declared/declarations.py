"""The inputs and outputs that a handler's own code declares: by attributes, or by type hints.

`inputs` and `outputs` of the class, or of `@settings`, come first. Without them the hints of
`inference` declare the inputs, as long as `preprocess` is the default one, and the return hint of
the last stage of the handler's own declares the outputs: one tensor type, or a TypedDict of them.
"""

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, get_args, get_origin

from ksrv.handlers.base import BaseHandler
from ksrv.handlers.batch_argument import READ
from ksrv.handlers.declared.settings import settings_of
from ksrv.handlers.declared.tensor_types import TensorType
from ksrv.handlers.loading import HandleFunctionHandler, InferenceFunctionHandler
from ksrv.handlers.model_imports import HandlerError
from ksrv.handlers.outputs import DEFAULT_NAME
from ksrv.spec import TensorSpec

Specs = tuple[TensorSpec, ...]


def declared_tensors(handler: BaseHandler) -> tuple[Specs, Specs]:
    """Return the inputs and outputs that a handler declares; empty where it declares none.

    Args:
        handler: The handler.

    Raises:
        HandlerError: A declaration holds something else than tensor types.
    """
    inputs = _by_attribute(handler, "inputs") or _specs("inputs", _hinted_inputs(handler))
    outputs = _by_attribute(handler, "outputs") or _specs("outputs", _hinted_outputs(handler))
    return inputs, outputs


def _by_attribute(handler: BaseHandler, key: str) -> Specs:
    target = _target(handler)
    found = settings_of(target).get(key, getattr(type(handler), key, None))
    if not isinstance(found, Mapping):
        return ()
    return _specs(key, found)


def _specs(key: str, named: Mapping[str, Any]) -> Specs:
    for name, found in named.items():
        if not isinstance(found, TensorType) or not isinstance(name, str) or not name:
            raise HandlerError(
                f"{key}: expected names with tensor types, such as Float32[1000], found {name!r}: "
                f"{found!r}"
            )
    return tuple(found.spec(name) for name, found in named.items())


def _target(handler: BaseHandler) -> Any:
    """Return the function or the class that is the handler."""
    if isinstance(handler, InferenceFunctionHandler | HandleFunctionHandler):
        return handler.function
    return type(handler)


def _hinted_inputs(handler: BaseHandler) -> dict[str, Any]:
    kind = type(handler)
    function = _target(handler)
    if not isinstance(handler, InferenceFunctionHandler):
        kept = all(getattr(kind, name) is getattr(BaseHandler, name) for name in _BEFORE)
        if not kept or kind.inference is BaseHandler.inference:
            return {}
        function = handler.inference
    found: dict[str, Any] = {}
    bare: list[str] = []
    for name, parameter in _parameters(function):
        hint = _tensor_type(parameter.annotation, function)
        if hint is not None:
            found[name] = hint
        elif parameter.default is parameter.empty and name not in READ:
            bare.append(name)
    if found and bare:
        raise HandlerError(
            f"inference: the parameter {bare[0]!r} has no tensor type, such as Float32[1000], but "
            f"{next(iter(found))!r} has"
        )
    return found


_BEFORE = ("handle", "preprocess")


def _hinted_outputs(handler: BaseHandler) -> dict[str, Any]:
    kind = type(handler)
    function = _target(handler)
    if function is kind:
        own = (
            name
            for name in ("handle", "postprocess", "inference")
            if getattr(kind, name) is not getattr(BaseHandler, name)
        )
        last = next(own, None)
        if last is None:
            return {}
        function = getattr(handler, last)
    hint = _signature(function).return_annotation if callable(function) else None
    found = _tensor_type(hint, function)
    if found is not None:
        return {DEFAULT_NAME: found}
    hint = _evaluated(hint, function)
    if isinstance(hint, type) and issubclass(hint, dict) and hasattr(hint, "__total__"):
        fields = inspect.get_annotations(hint)
        named = {
            name: _tensor_type(_text_of(one), hint, hint.__module__) for name, one in fields.items()
        }
        if any(one is not None for one in named.values()):
            return named
    return {}


def _text_of(hint: Any) -> Any:
    """Return the text of a hint that TypedDict has kept as a ForwardRef."""
    return getattr(hint, "__forward_arg__", hint)


def _parameters(function: Callable[..., Any]) -> Iterator[tuple[str, inspect.Parameter]]:
    for name, parameter in _signature(function).parameters.items():
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            yield name, parameter


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # a callable of a compiled module may not tell
        return inspect.Signature()


def _tensor_type(hint: Any, owner: Any, module: str = "") -> TensorType | None:
    """Return the tensor type of a hint, also behind `Annotated`; None for any other hint."""
    hint = _evaluated(hint, owner, module)
    if get_origin(hint) is Annotated:
        hint = next((one for one in get_args(hint)[1:] if isinstance(one, TensorType)), None)
    return hint if isinstance(hint, TensorType) else None


def _evaluated(hint: Any, owner: Any, module: str = "") -> Any:
    """Return what a hint that is a text stands for; None where its names exist for checkers only."""
    function = inspect.unwrap(owner) if callable(owner) else owner
    names = vars(sys.modules[module]) if module else getattr(function, "__globals__", {})
    for _ in range(2):  # where annotations are postponed, a quoted hint is a text in a text
        if not isinstance(hint, str):
            break
        try:
            hint = eval(hint, dict(names))
        except NameError:
            return None
    return hint
