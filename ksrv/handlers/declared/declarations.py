"""Reads the inputs and outputs that a handler's code declares, and refuses handlers whose stages cannot be called.

`inputs` and `outputs` of the class, or of `@settings`, take precedence. Without them the type hints of
`inference` declare the inputs, if `preprocess` is not overridden, and the return hint of
the last stage that the handler overrides declares the outputs: one tensor type, or a TypedDict of tensor types. With
Python's own types (`serve_rows`) the function gets single rows.
"""

import inspect
from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from typing import Any

from ksrv.handlers.base import BaseHandler, missing_inference
from ksrv.handlers.batch_argument import READ, asked_of
from ksrv.handlers.declared.hints import Hints
from ksrv.handlers.declared.plain_types import array_type
from ksrv.handlers.declared.rows import row_function
from ksrv.handlers.declared.settings import settings_of
from ksrv.handlers.declared.tensor_types import TensorType
from ksrv.handlers.imports.folder_modules import HandlerError
from ksrv.handlers.loading import (
    HandleFunctionHandler,
    InferenceFunctionHandler,
    signature_of,
    why_not_callable,
)
from ksrv.handlers.outputs import DEFAULT_NAME
from ksrv.model.spec import ModelSpec, TensorSpec

Specs = tuple[TensorSpec, ...]


def declared_tensors(handler: BaseHandler, known: ModelSpec) -> tuple[Specs, Specs]:
    """Return the inputs and outputs that a handler declares; empty if it declares none.

    Args:
        handler: The handler.
        known: The spec of model.yaml. If it has inputs or outputs, those in the code are not read.

    Raises:
        HandlerError: A declaration has other values than tensor types.
    """
    inputs, outputs = known.inputs, known.outputs
    if not inputs:
        inputs = _by_attribute(handler, "inputs") or _specs("inputs", _hinted_inputs(handler))
    if not outputs:
        outputs = _by_attribute(handler, "outputs") or _specs("outputs", _hinted_outputs(handler))
    return inputs, outputs


def serve_rows(handler: BaseHandler, known: ModelSpec) -> None:
    """Let a handler get single rows, if only the hints of its function declare its inputs, by Python's own types.

    Args:
        handler: The handler.
        known: The spec of model.yaml.

    Raises:
        HandlerError: A hint cannot be an input.
    """
    function = _inference_of(handler)
    stages = ("declare", "postprocess")
    if function is None or known.inputs or not all(is_default(handler, stage) for stage in stages):
        return
    if _by_attribute(handler, "inputs"):
        return
    handler.row_function = row_function(function)
    if handler.row_function is not None:
        handler.preprocess = lambda batch: batch  # type: ignore[method-assign]
        handler.inference = handler.row_function.stage  # type: ignore[method-assign]


def is_default(handler: Any, name: str) -> bool:
    """Tell whether a handler leaves a stage as `BaseHandler` has it.

    Args:
        handler: The handler.
        name: The stage's name.
    """
    own = getattr(type(handler), name, None) is getattr(BaseHandler, name)
    return own and name not in getattr(handler, "__dict__", ())


def check_settings(handler: Any, given: Collection[str]) -> None:
    """Refuse a handler with settings that the server could not read, because it reads them without running the file.

    Args:
        handler: The handler.
        given: The keys that were read from the file and from model.yaml.

    Raises:
        HandlerError: The handler's `@settings` has other keys.
    """
    target = _target(handler)
    late = sorted(settings_of(target).keys() - set(given) - {"inputs", "outputs"})
    if late:
        raise HandlerError(
            f"@settings({', '.join(f'{key}=...' for key in late)}) of {target.__name__} cannot be read without running "
            f"the file: write @settings, imported by `from ksrv import settings`, above {target.__name__} itself, or name "
            f"{', '.join(late)} in model.yaml"
        )


def _by_attribute(handler: BaseHandler, key: str) -> Specs:
    """Return the tensors that `@settings` or an attribute of the class declares."""
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
        if found.optional and key == "outputs":
            raise HandlerError(
                f"outputs: {name!r} may be None; an answer has every declared output"
            )
    return tuple(found.spec(name) for name, found in named.items())


def _target(handler: BaseHandler) -> Any:
    """Return the function or the class that is the handler."""
    if isinstance(handler, InferenceFunctionHandler | HandleFunctionHandler):
        return handler.function
    return type(handler)


def _hinted_inputs(handler: BaseHandler) -> dict[str, Any]:
    """Return the tensor types of the parameters of `inference`, by name."""
    if handler.row_function is not None:
        return dict(handler.row_function.inputs)
    function = _inference_of(handler)
    signature = None if function is None else signature_of(function)
    if signature is None:
        return {}
    hints = Hints(function)
    found: dict[str, Any] = {}
    bare: list[str] = []  # parameters without a tensor type
    for name, parameter in signature.parameters.items():
        subject = f"inference: the parameter {name!r}"
        hint = hints.tensor(parameter.annotation, subject)
        if hint is None and isinstance(handler, InferenceFunctionHandler):
            hint = array_type(hints.evaluated(parameter.annotation, subject))
        is_many = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if is_many and hint is not None:
            raise HandlerError(f"{subject} is for many inputs; declare each input separately")
        if hint is not None and name == "batch":
            raise HandlerError(
                f"{subject} gets the batch, whatever its hint; give the input another name"
            )
        if hint is not None:
            found[name] = _with_default(hint, parameter, subject)
        elif not is_many and parameter.default is parameter.empty and name not in READ:
            bare.append(name)
    if found and bare:
        raise HandlerError(
            f"inference: the parameter {bare[0]!r} has no tensor type, such as Float32[1000], but "
            f"{next(iter(found))!r} has"
        )
    return found


def _with_default(hint: TensorType, parameter: inspect.Parameter, subject: str) -> TensorType:
    """Return the type of a parameter. If its default is None, a request may leave the input out."""
    if parameter.default is parameter.empty:
        return hint
    if parameter.default is None:
        return hint.or_none()
    raise HandlerError(
        f"{subject} has the default {parameter.default!r}, which no request would get; write "
        f"{parameter.name}: {hint} | None = None, and put the value in its place within the function"
    )


_BEFORE = ("handle", "preprocess")
"""If a handler overrides one of these stages, `inference` does not get the inputs."""


def _inference_of(handler: BaseHandler) -> Callable[..., Any] | None:
    """Return the handler's function that gets the inputs from the default `preprocess`.

    None if a stage before it is overridden, if `inference` is the default, or if `serve_rows` has made the function get
    single rows.
    """
    if handler.row_function is not None:
        return None
    if isinstance(handler, InferenceFunctionHandler):
        return handler.function
    kind = type(handler)
    kept = all(getattr(kind, name) is getattr(BaseHandler, name) for name in _BEFORE)
    return handler.inference if kept and kind.inference is not BaseHandler.inference else None


_STAGES = ("initialize", "preprocess", "inference", "postprocess", "explain", "handle", "close")
_NEAR = 0.85
"""How similar a name must be to count as misspelt: pre_process and preprocessing do, preprocess_image does not."""
_STAGE_ARGUMENTS = {
    "initialize": ("context",),
    "preprocess": ("batch",),
    "handle": ("batch", "context"),
}


def check_stages(handler: Any) -> None:
    """Refuse a handler with a misspelt stage, or with a stage that cannot be called as stages are.

    Args:
        handler: The handler, before `pass_batch` replaces its stages.

    Raises:
        HandlerError: Every request would be a TypeError, or run the default stage.
    """
    if not isinstance(handler, BaseHandler) or isinstance(handler, InferenceFunctionHandler):
        return
    _check_names(type(handler))
    for name, given in _STAGE_ARGUMENTS.items():
        stage = getattr(handler, name)
        if getattr(type(handler), name, None) is getattr(BaseHandler, name):
            continue
        reason = why_not_callable(stage, *given)
        if reason:
            raise HandlerError(
                f"{_shown(stage, f'{type(handler).__name__}.{name}')} cannot be called: {reason}; it gets "
                f"({', '.join(given)}); inputs by name go to inference"
            )


def _check_names(kind: type[BaseHandler]) -> None:
    """Refuse a class with a method that is named almost like a default stage, and that no other method calls.

    Raises:
        HandlerError: The stage is misspelt, and ksrv would never call it.
    """
    own = [base for base in kind.__mro__ if not base.__module__.startswith("ksrv.")]
    methods = {
        name: item for base in own for name, item in vars(base).items() if inspect.isfunction(item)
    }
    called = {
        name for method in methods.values() for name in inspect.unwrap(method).__code__.co_names
    }
    stages = [name for name in _STAGES if getattr(kind, name) is getattr(BaseHandler, name)]
    for name in methods.keys() - called - set(_STAGES):
        near = get_close_matches(name, stages, n=1, cutoff=_NEAR)
        if near and not name.startswith("_"):
            raise HandlerError(
                f"{kind.__name__}.{name} is not a stage, and nothing calls it; did you mean {near[0]}? If it is a "
                f"function of your own, give its name a leading underscore"
            )


def check_call(handler: Any, spec: ModelSpec, *, sequences: bool) -> None:
    """Refuse a handler whose `inference` cannot be called with the declared inputs.

    Args:
        handler: The handler, before `pass_batch` replaces its stages.
        spec: The complete spec.
        sequences: Whether the model serves sequences.

    Raises:
        HandlerError: Every request would be a TypeError.
    """
    if not isinstance(handler, BaseHandler):
        return
    _check_inference(handler)
    function = _inference_of(handler)
    if function is None or not spec.inputs or spec.accepts_any_inputs:
        return
    asked, only_asked = asked_of(function, sequences=sequences)
    named = dict.fromkeys(asked)
    values: tuple[None, ...] = ()
    how = "by name"
    if not only_asked and spec.takes_one_value:
        values, how = (None,), "as the first argument"
    elif not only_asked:
        named |= dict.fromkeys(entry.name for entry in spec.inputs)
    reason = why_not_callable(function, *values, **named)
    if reason:
        shown = ", ".join(entry.name for entry in spec.inputs)
        shown += "".join(f" and {name}" for name in asked)
        raise HandlerError(
            f"{_shown(function, getattr(function, '__name__', 'inference'))} cannot be called with the declared inputs: "
            f"{reason}; it gets {shown} {how}"
        )


def _shown(function: Callable[..., Any], name: str) -> str:
    """Return a function's name with its parameters."""
    signature = signature_of(function)
    return f"{name}{signature.replace(return_annotation=signature.empty) if signature else ''}"


def _check_inference(handler: BaseHandler) -> None:
    """Refuse a handler without a model that also overrides no stage which could answer or set the model."""
    stages = ("__init__", "initialize", "preprocess", "inference", "handle", "explain")
    if handler.model is None and all(is_default(handler, stage) for stage in stages):
        raise HandlerError(missing_inference(handler))


def _hinted_outputs(handler: BaseHandler) -> dict[str, Any]:
    """Return the tensor types of the return hint of the handler's last stage, by name."""
    if handler.row_function is not None:
        return dict(handler.row_function.outputs)
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
    signature = signature_of(function) if callable(function) else None
    if signature is None:
        return {}
    subject = f"{getattr(function, '__name__', 'the handler')}: the return hint"
    return Hints(function).outputs(signature.return_annotation, subject, DEFAULT_NAME)
