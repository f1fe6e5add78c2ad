"""Completes the description of a model: first by the handler's declarations, then by the loaded model file.

model.yaml takes precedence, then the handler's code, then the model file. `declared_spec` is called before the handler
is initialized, `complete_spec` afterwards.
"""

import sys
from dataclasses import replace
from typing import Any

from ksrv.handlers.base import BaseHandler
from ksrv.handlers.declared.declarations import declared_tensors, is_default
from ksrv.handlers.handler_context import HandlerContext
from ksrv.handlers.imports.folder_modules import HandlerError
from ksrv.handlers.postprocess.steps import Steps
from ksrv.loaders.loaded import LoadedModel, ModelLoadError
from ksrv.model.fault import Fault
from ksrv.model.input_rules import with_lengths
from ksrv.model.spec import ModelSpec, TensorSpec, whole


def declared_spec(handler: BaseHandler, spec: ModelSpec) -> ModelSpec:
    """Return the spec of the settings, completed by the tensors that the handler's code declares.

    Args:
        handler: The handler.
        spec: The spec by the settings alone, whose tensors win.
    """
    inputs, outputs = declared_tensors(handler, spec)
    if not spec.counts_rows:
        inputs = spec.inputs or tuple(map(_without_rows, inputs))
        outputs = spec.outputs or tuple(map(_without_rows, outputs))
    return _with_lengths(replace(spec, inputs=inputs, outputs=outputs), complete=bool(inputs))


def _with_lengths(spec: ModelSpec, *, complete: bool = True) -> ModelSpec:
    """Return a spec with its padding and its lengths completed.

    Args:
        complete: Whether no further inputs will be declared.

    Raises:
        HandlerError: The declarations contradict each other.
    """
    try:
        inputs, outputs = with_lengths(spec.inputs, spec.outputs, complete=complete)
    except Fault as fault:
        side, index, *key = fault.path
        name = getattr(spec, str(side))[index].name
        raise HandlerError(f"{side}: {'.'.join((name, *map(str, key)))}: {fault.text}") from None
    return replace(spec, inputs=inputs, outputs=outputs)


def _without_rows(tensor: TensorSpec) -> TensorSpec:
    """Return a tensor of a type hint for a model without rows: the sizes of the hint are the whole shape.

    Raises:
        HandlerError: The tensor is an image, which needs rows.
    """
    if tensor.image is not None:
        raise HandlerError(
            f"{tensor.name}: an image is a row, and the model has none with batching: off; declare the whole shape "
            f"under inputs"
        )
    return replace(tensor, shape=tensor.shape[1:], lengths=tensor.lengths[1:])


def add_steps(handler: Any, context: HandlerContext) -> None:
    """Make the steps of `postprocess:` the stage `postprocess` of a handler.

    Raises:
        HandlerError: The handler has such a stage.
        Fault: See `Steps`.
    """
    config = context.config
    if not config.postprocess:
        return
    if not all(is_default(handler, stage) for stage in ("postprocess", "handle")):
        raise HandlerError(
            f"postprocess: is for handlers that keep this stage and handle; {type(handler).__name__} does not"
        )
    context.steps = Steps(
        [step for entry in config.postprocess for _, step in entry.given],
        context.labels,
        context.model_name,
        config.answered or [output.name for output in config.outputs],
        takes_images=any(entry.image is not None for entry in context.spec.inputs),
    )
    handler.postprocess, context.passes_outputs = context.steps.run, False


def complete_spec(handler: Any, context: HandlerContext) -> ModelSpec:
    """Return the declared spec, completed by the handler and the model file.

    Args:
        handler: The handler, initialized.
        context: Its context.

    Returns:
        The complete spec.
    """
    spec = _with_lengths(_completed(handler, context))
    if spec.counts_rows:
        return spec
    return replace(
        spec, inputs=tuple(map(whole, spec.inputs)), outputs=tuple(map(whole, spec.outputs))
    )


def _completed(handler: Any, context: HandlerContext) -> ModelSpec:
    spec, loaded, steps = context.spec, context.loaded, context.steps
    if isinstance(handler, BaseHandler):
        spec = handler.declare(spec)
    if steps is not None:
        # The handler's code declares what its `inference` returns, and model.yaml what the steps make.
        own = () if context.config.outputs else spec.outputs
        file = loaded.outputs if loaded is not None and keeps(handler, "inference") else ()
        made = steps.declare(own or file)
        spec = replace(spec, outputs=context.config.outputs or made)
    # Choosing a device may import torch. A handler that has not imported torch, and has no model file, uses the CPU.
    chosen = loaded is not None or context.config.device != "auto" or "torch" in sys.modules
    device = context.device if chosen else "cpu"
    if loaded is None:
        return replace(spec, platform=context.config.platform or "python", device=device)
    passes_inputs, passes_outputs = keeps(handler, "preprocess"), keeps(handler, "postprocess")
    if passes_inputs:
        check_inputs(spec, loaded)
    spec = replace(
        spec,
        device=device,
        platform=context.config.platform or loaded.platform,
        inputs=spec.inputs or (loaded.inputs if passes_inputs else ()),
        outputs=spec.outputs or (loaded.outputs if passes_outputs else ()),
    )
    if passes_outputs:
        check_rows(spec, loaded)
    return spec


def check_inputs(spec: ModelSpec, loaded: LoadedModel) -> None:
    """Raise if the model file knows its inputs and cannot take the declared inputs.

    Args:
        spec: The inputs and outputs that model.yaml declares.
        loaded: The model that the loader returned.

    Raises:
        ModelLoadError: The number of inputs or a datatype differs.
    """
    if not (spec.inputs and loaded.inputs):
        return
    if len(spec.inputs) != len(loaded.inputs):
        raise ModelLoadError(
            f"model.yaml declares the inputs {', '.join(entry.name for entry in spec.inputs)}; "
            f"the model file has {', '.join(entry.name for entry in loaded.inputs)}"
        )
    by_name = {entry.name for entry in loaded.inputs} == {entry.name for entry in spec.inputs}
    for index, declared in enumerate(spec.inputs):
        own = next(
            (entry for entry in loaded.inputs if by_name and entry.name == declared.name),
            loaded.inputs[index],
        )
        if own.datatype != declared.datatype:
            raise ModelLoadError(
                f"model.yaml declares the input {declared.name!r} as {declared.datatype}; "
                f"in the model file {own.name!r} is {own.datatype}"
            )
        if spec.max_batch_size > 1 and declared.batched and own.shape and not own.batched:
            raise ModelLoadError(
                f"batching: joins rows of the input {declared.name!r}, and the model file takes {own.shape[0]} of them; "
                f"leave batching: out, or export the model with any number of rows"
            )


def check_rows(spec: ModelSpec, loaded: LoadedModel) -> None:
    """Refuse a model file whose outputs never have one row for each row of the inputs.

    Args:
        spec: The complete spec of a model that answers with the outputs of its file.
        loaded: The model that the loader returned.

    Raises:
        ModelLoadError: An output has a fixed number of rows.
    """
    if not spec.counts_rows or not any(entry.batched for entry in spec.inputs):
        return
    for output in loaded.outputs:
        rows = output.shape[0] if output.shape else 0
        if isinstance(rows, int) and rows not in (-1, 1):
            has = f"has {rows} rows" if rows else "has no rows"
            raise ModelLoadError(
                f"the output {output.name!r} of the model file {has}, however many the inputs have; write batching: off, "
                f"so that shapes are whole"
            )


def keeps(handler: Any, stage: str) -> bool:
    """Tell whether a handler keeps the default of a stage, of `inference` and of `handle`.

    Args:
        handler: The handler.
        stage: The stage's name.
    """
    return all(is_default(handler, name) for name in (stage, "inference", "handle"))
