"""Passes the running batch, or its sequences, to stages that have a parameter `batch` or `sequences`.

ksrv calls `inference` and `postprocess` with the value of the stage before, or with the inputs. A stage may have a
further parameter named `batch`, which gets the `Batch`. If the model serves sequences, a parameter named `sequences`
gets `batch.sequences`. The first parameter of a stage gets the value, even if it has one of these names. One exception:
a function or an `inference` that has only such parameters gets no inputs, if `preprocess` is the default.

The signatures are read once, when the handler is loaded; a stage with such parameters is replaced by a wrapper.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from ksrv.handlers.base import BaseHandler
from ksrv.handlers.imports.folder_modules import HandlerError
from ksrv.handlers.loading import InferenceFunctionHandler, signature_of

READ: dict[str, Callable[[Any], Any]] = {
    "batch": lambda batch: batch,
    "sequences": lambda batch: batch.sequences,
}


def pass_batch(handler: BaseHandler, *, sequences: bool = False) -> None:
    """Wrap the stages of a handler that have a parameter for the batch or its sequences.

    Args:
        sequences: Whether the model serves sequences.

    Raises:
        HandlerError: `inference` has no parameter, but would be called with the inputs.
    """
    names = frozenset(READ if sequences else ("batch",))
    kind = type(handler)
    if kind.handle is BaseHandler.handle and kind.preprocess is BaseHandler.preprocess:
        _check_takes_inputs(handler)
    # A handler's own `preprocess` returns a value for `inference` in any case.
    prepared = type(handler).preprocess is not BaseHandler.preprocess
    for stage in ("inference", "postprocess"):
        function = getattr(handler, stage)
        asked, only_asked = _asked(function, names, prepared or stage == "postprocess")
        if asked:
            setattr(handler, stage, _bound(function, handler, asked, only_asked))
    if isinstance(handler, InferenceFunctionHandler):
        asked, only_asked = _asked(handler.model, names, False)
        if asked:
            handler.model = _bound(handler.model, handler, asked, only_asked)


def _check_takes_inputs(handler: BaseHandler) -> None:
    function = handler.inference
    subject, example = f"{type(handler).__name__}.inference()", "def inference(self, x: Float32[4])"
    if isinstance(handler, InferenceFunctionHandler) and inspect.isfunction(handler.model):
        function, name = handler.model, handler.model.__name__
        subject, example = f"{name}()", f"def {name}(x: Float32[4])"
    signature = signature_of(function, follow_wrapped=False)
    if signature is not None and not signature.parameters:
        raise HandlerError(
            f"{subject} has no parameter, but ksrv calls it with the model's inputs; add a parameter for each "
            f"input, such as {example}"
        )


def asked_of(function: Callable[..., Any], *, sequences: bool) -> tuple[tuple[str, ...], bool]:
    """Return which of `batch` and `sequences` a function gets after the default `preprocess`, and whether it gets only
    these.

    Args:
        function: The handler's function, or its `inference`.
        sequences: Whether the model serves sequences.
    """
    return _asked(function, frozenset(READ if sequences else ("batch",)), False)


def _asked(
    function: Callable[..., Any], names: frozenset[str], takes_value: bool
) -> tuple[tuple[str, ...], bool]:
    """Return which of the parameters `names` get the batch or its sequences, and whether the function has only these.

    Args:
        takes_value: Whether ksrv calls the function with a value for its first parameter, even if it has only
            parameters in `names`.
    """
    signature = signature_of(function, follow_wrapped=False)
    if signature is not None and any(
        parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values()
    ):
        # A decorator with **named passes all arguments to the wrapped function.
        signature = signature_of(function)
    if signature is None:
        return (), False
    parameters = list(signature.parameters.values())
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    found = [entry for entry in parameters if entry.name in names and entry.kind in named]
    only_asked = len(found) == len(parameters)
    if found and found[0] is parameters[0] and (takes_value or not only_asked):
        # The first parameter gets the value, although it is called `batch` or `sequences`. A keyword-only parameter
        # cannot get a value by position, so it gets the batch.
        only_asked = False
        if found[0].kind is not inspect.Parameter.KEYWORD_ONLY:
            del found[0]
    return tuple(entry.name for entry in found), only_asked


def _bound(
    function: Callable[..., Any], handler: BaseHandler, asked: tuple[str, ...], only_asked: bool
) -> Callable[..., Any]:
    """Return a function that adds the arguments `asked`; with `only_asked` it drops all others."""

    @functools.wraps(function)
    def call(*values: Any, **named: Any) -> Any:
        batch = handler.context.batch
        if only_asked:
            return function(**{name: READ[name](batch) for name in asked})
        for name in asked:
            named.setdefault(name, READ[name](batch))
        return function(*values, **named)

    return call
