"""Finds the class or function that `handler:` of model.yaml names, and makes a handler object of it.

If the target is a whole file, its only handler class is taken. A file without a handler class may have a function
`handle(batch, context)`, a function `inference` that gets the result of the default `preprocess`, or only one function
without a leading underscore, whose parameters have type hints.

Signatures are read in two ways (`why_not_callable`): of the object itself, and of the innermost function that
`functools.wraps` leads to. A decorator may add arguments, drop some or choose among several functions, so a function is
refused only if neither signature accepts the call.
"""

import inspect
import re
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

from ksrv.handlers.base import BaseHandler
from ksrv.handlers.batch import Batch
from ksrv.handlers.context import Context
from ksrv.handlers.imports.folder_modules import HandlerError, ModelImporter, resolve
from ksrv.model.config import BUILT_IN_HANDLERS


class InferenceFunctionHandler(BaseHandler):
    """Serves a plain function instead of a model."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def initialize(self, context: Context) -> None:
        """Take the function as the model; a model file is not loaded."""
        self.context = context
        self.labels = context.labels
        self.model = self.function


class HandleFunctionHandler(BaseHandler):
    """Serves a module-level `handle(batch, context)`."""

    def __init__(self, function: Callable[[Batch, Context], Any]) -> None:
        self.function = function

    def handle(self, batch: Batch, context: Context) -> Any:
        """Call the function."""
        return self.function(batch, context)


def make_handler(target: str | None, modules: ModelImporter) -> Any:
    """Return the handler object of a model.

    Args:
        target: `handler:` of model.yaml, or None for the default stages around a model file.

    Returns:
        An object with `initialize(context)` and `handle(batch, context)`.

    Raises:
        HandlerError: The target does not exist or is not a handler.
    """
    if target is None:
        return BaseHandler()
    if target in BUILT_IN_HANDLERS:
        module = import_module(f"ksrv.handlers.builtin.{target}")
        return getattr(module, target.title().replace("_", ""))()
    found = resolve(target, modules)
    if isinstance(found, ModuleType):
        found, target = _only_handler(found, target)
    return handler_of(found, target)


def handler_of(found: Any, target: str) -> Any:
    """Return the handler object of a class or function.

    Args:
        found: The class or function.

    Raises:
        HandlerError: It is not a handler.
    """
    if inspect.isclass(found):
        try:
            made = found()
        except TypeError:
            _check_construction(found, target)
            raise
        if hasattr(made, "handle"):
            return made
        if callable(made):
            return InferenceFunctionHandler(made)
        raise HandlerError(f"{target}: the class {found.__name__} has no method handle")
    if _name_of(found, target) == "handle" and callable(found):
        if why_not_callable(found, None, None):
            raise HandlerError(
                f"{target}: a function called handle gets two arguments, handle(batch, context), but the file has "
                f"handle{signature_of(found)}; give a function of the inputs another name"
            )
        return HandleFunctionHandler(found)
    if callable(found):
        return InferenceFunctionHandler(found)
    raise HandlerError(
        f"{target}: a {type(found).__name__} is neither a class nor a function; name one of these"
    )


def _name_of(found: Any, target: str) -> str:
    """Return the name of a function; of another object, such as a partial, the name that the target has for it."""
    return found.__name__ if inspect.isfunction(found) else re.split(r"[.:]", target)[-1]


def _check_construction(kind: type[Any], target: str) -> None:
    """Raise a helpful error for a class that could not be called without arguments.

    This is called only after the call has failed, because a decorator of `__init__` may add arguments that the
    signature requires.

    Raises:
        HandlerError: `__init__` requires arguments.
    """
    signature = signature_of(kind)
    if signature is None:  # a class of C code has no signature
        return
    try:
        signature.bind()
    except TypeError as error:
        raise HandlerError(
            f"{target}: {kind.__name__}() cannot be called without arguments, as ksrv calls it: {error}; load what "
            f"the handler needs in initialize(self, context), and give __init__ no arguments"
        ) from None


def _only_handler(module: ModuleType, target: str) -> tuple[Any, str]:
    """Return the handler class or function of a whole file, and the target that names it."""
    classes = [
        value
        for value in vars(module).values()
        if inspect.isclass(value)
        and issubclass(value, BaseHandler)
        and value.__module__ == module.__name__
    ]
    # Without classes from which another class of the file derives.
    last = [kind for kind in classes if not any(kind in other.__mro__[1:] for other in classes)]
    last = [kind for kind in last if not inspect.isabstract(kind)] or last
    if len(last) == 1:
        return last[0], target
    if last:
        names = ", ".join(kind.__name__ for kind in last)
        raise HandlerError(f"{target} holds several handlers ({names}); name one: {target}:NAME")
    for name in ("handle", "inference"):
        function = getattr(module, name, None)
        if callable(function) and not inspect.isclass(function):
            return function, f"{target}:{name}"
    own = [
        item for item in vars(module).values() if getattr(item, "__module__", "") == module.__name__
    ]
    like = next((item for item in own if inspect.isclass(item) and hasattr(item, "handle")), None)
    hint = f"; if {like.__name__} is written for TorchServe, let {target} import ts" if like else ""
    found = [item for item in own if inspect.isfunction(item) and not item.__name__.startswith("_")]
    if len(found) == 1 and _is_typed(found[0]):
        return found[0], f"{target}:{found[0].__name__}"
    if found and not like:
        hint = f"; to serve a function, name it: {target}:{found[0].__name__}"
    plain = next((item for item in own if inspect.isclass(item)), None)
    if plain is not None and not hint:
        hint = f"; derive {plain.__name__} from ksrv.BaseHandler, and call what answers a request inference"
    if not hint:
        hint = "; write a class that derives from ksrv.BaseHandler, with a method inference, or a function inference"
    raise HandlerError(
        f"{target} holds no subclass of BaseHandler, no function handle and no function inference{hint}"
    )


def _is_typed(function: Callable[..., Any]) -> bool:
    """Tell whether a function has parameters, and each has a type hint."""
    signature = signature_of(function)
    hints = [item.annotation for item in signature.parameters.values()] if signature else []
    return bool(hints) and inspect.Parameter.empty not in hints


def signature_of(
    function: Callable[..., Any], *, follow_wrapped: bool = True
) -> inspect.Signature | None:
    """Return the signature of a function; None if it is compiled and has no signature.

    Args:
        function: The function.
        follow_wrapped: Whether to return the signature of the innermost function that decorators wrap.
    """
    try:
        return inspect.signature(function, follow_wrapped=follow_wrapped)
    except (TypeError, ValueError):
        return None


def why_not_callable(function: Callable[..., Any], /, *values: Any, **named: Any) -> str:
    """Return why a function cannot be called with these arguments; "" if it, or a decorator around it, may accept
    them.
    """
    reason = ""
    for follow in (False, True):  # the last reason names the parameters that the author wrote
        signature = signature_of(function, follow_wrapped=follow)
        try:
            if signature is not None:
                signature.bind(*values, **named)
            return ""
        except TypeError as error:
            reason = str(error)
    return reason
