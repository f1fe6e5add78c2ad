"""Passes the running batch to the stages that ask for it: a parameter called `batch`.

The first parameter of a stage is its value, whatever its name; a `batch` beside it is the batch. A
function or an `inference` whose only parameter is `batch` takes nothing else, as long as
`preprocess` is the default one.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from ksrv.handlers.base import BaseHandler
from ksrv.handlers.loading import InferenceFunctionHandler

ARGUMENT = "batch"


def pass_batch(handler: BaseHandler) -> None:
    """Let the stages of a handler that ask for the batch have it.

    Args:
        handler: The handler, initialized.
    """
    prepared = type(handler).preprocess is not BaseHandler.preprocess
    for stage in ("inference", "postprocess"):
        function = getattr(handler, stage)
        asks, alone = _asks(function)
        if asks and not (alone and (prepared or stage == "postprocess")):
            setattr(handler, stage, _bound(function, handler, alone))
    if isinstance(handler, InferenceFunctionHandler):
        asks, alone = _asks(handler.model)
        if asks:
            handler.model = _bound(handler.model, handler, alone)


def _asks(function: Callable[..., Any]) -> tuple[bool, bool]:
    """Return whether a function has a parameter for the batch, and whether it has no other."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # a callable of a compiled module may not tell
        return False, False
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    found = next((one for one in parameters if one.name == ARGUMENT and one.kind in named), None)
    alone = len(parameters) == 1
    if found is None:
        return False, False
    first = found is parameters[0] and found.kind is not inspect.Parameter.KEYWORD_ONLY
    return alone or not first, alone


def _bound(function: Callable[..., Any], handler: BaseHandler, alone: bool) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*values: Any, **named: Any) -> Any:
        if alone:
            return function(**{ARGUMENT: handler.context.batch})
        named.setdefault(ARGUMENT, handler.context.batch)
        return function(*values, **named)

    return call
