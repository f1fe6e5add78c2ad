"""Drives one handler: loads it, runs batches through it, and turns whatever it does into answers.

Both executors use it: the inline one on a thread of the server, the process one in its child.
"""

import logging
import sys
from dataclasses import replace
from importlib import import_module
from time import perf_counter_ns
from typing import Any

import numpy as np

from ksrv.compile_plan import CompileError
from ksrv.errors import HandlerFailed, InferenceError, KsrvError, ModelFailed, quote, without_paths
from ksrv.handlers.base import BaseHandler, infer_and_postprocess
from ksrv.handlers.batch import Batch
from ksrv.handlers.context import Context
from ksrv.handlers.device import DeviceError
from ksrv.handlers.loading import make_handler
from ksrv.handlers.metrics import Emit, Metrics, discard
from ksrv.handlers.model_imports import HandlerError, error_location
from ksrv.handlers.outputs import OutputConverter
from ksrv.loaders.loaded import LoadedModel, ModelLoadError
from ksrv.request import BatchInputs, BatchOutputs, Tensor
from ksrv.source import ModelConfig, ModelSource
from ksrv.spec import ModelSpec

log = logging.getLogger("ksrv.handlers")

SHOWN_IDS = 8
# Errors whose text says all; a traceback would show ksrv's own code only.
EXPECTED = (ModelLoadError, HandlerError, DeviceError, CompileError)


class HandlerLoadError(Exception):
    """A handler or model that could not be loaded; the text names it and the reason."""


def make_runner(
    source: ModelSource, *, instance: int = 0, threads: int = 0, emit: Emit = discard
) -> "Runner":
    """Return the runner that the model's settings name; ksrv's own, except for archives.

    Args:
        source: The version on disk.
        instance: The instance's number.
        threads: CPU threads that it may use; 0 leaves the framework's choice.
        emit: Takes the values that the handler reports.

    Raises:
        HandlerLoadError: There is no such runner.
    """
    named = source.config.runner if source.config else ModelConfig().runner
    module, _, name = named.partition(":")
    try:
        make = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise HandlerLoadError(f"the runner {named} cannot be imported: {error}") from error
    runner: Runner = make(source, instance=instance, threads=threads, emit=emit)
    return runner


class Runner:
    """One instance of a model version.

    Args:
        source: The version on disk.
        instance: The instance's number.
        threads: CPU threads that it may use; 0 leaves the framework's choice.
        emit: Takes the values that the handler reports with `context.metrics`.
    """

    def __init__(
        self,
        source: ModelSource,
        *,
        instance: int = 0,
        threads: int = 0,
        emit: Emit = discard,
    ) -> None:
        self.source = source
        self._instance = instance
        self._threads = threads
        self._metrics = Metrics(source.name, source.version, emit)
        self._handler: Any = None
        self._context: Context | None = None
        self._outputs = OutputConverter(ModelSpec(source.name))
        self._nchw_inputs: frozenset[str] = frozenset()
        self._passes_inputs_through = False

    @property
    def handler(self) -> Any:
        """The handler object, or None before `load`."""
        return self._handler

    def load(self) -> ModelSpec:
        """Import the handler and let it initialize.

        Returns:
            The model's spec, completed by the inputs and outputs of the model file.

        Raises:
            HandlerLoadError: Settings, handler or model file are at fault; the cause is chained.
        """
        config = self.source.config
        if config is None or self.source.error:
            raise HandlerLoadError(self.source.error or f"{self.source.folder} has no settings")
        context = Context(
            self.source,
            config,
            instance=self._instance,
            threads=self._threads,
            metrics=self._metrics,
            make_batch=self._batch_of,
        )
        try:
            handler = make_handler(config.handler, context.modules)
            context.apply_torch_settings()
            if isinstance(handler, BaseHandler):
                handler.context = context
            if hasattr(handler, "initialize"):
                handler.initialize(context)
            context.spec = complete_spec(handler, context)
        except BaseException as error:  # a script that is imported may end with sys.exit
            context.modules.close()
            if not isinstance(error, EXPECTED):
                log.error("%s cannot be loaded", self._shown(), exc_info=error)
            raise HandlerLoadError(
                f"{self._shown()} cannot be loaded: {type(error).__name__}: {error}"
                f"{error_location(self.source.root, error)}"
            ) from error
        self._handler = handler
        self._context = context
        self._outputs = OutputConverter(context.spec)
        self._nchw_inputs = frozenset(
            entry.name
            for entry in context.spec.inputs
            if entry.image is not None and entry.image.model_layout == "NCHW"
        )
        self._passes_inputs_through = (
            isinstance(handler, BaseHandler)
            and all(_is_default(handler, name) for name in ("handle", "preprocess"))
            and context.loaded is None
            and not self._nchw_inputs
        )
        return context.spec

    def run(self, inputs: BatchInputs) -> BatchOutputs:
        """Run one batch.

        Args:
            inputs: The assembled batch.

        Returns:
            The outputs, the failures of single requests, and the stages' times.

        Raises:
            KsrvError: The whole batch failed.
        """
        context = self._context
        if context is None:
            raise HandlerFailed(f"{self._shown()} is not loaded")
        handler = self._handler
        context.begin(inputs)
        began = perf_counter_ns()
        failure: KsrvError | None = None
        tensors: list[Tensor] = []
        try:
            arrays = self._arrays(inputs)
            if arrays is None:
                result = handler.handle(context.batch, context)
                # A handler with a `handle` of its own may have run no stage that is timed.
                context.timings = context.timings or {"inference": perf_counter_ns() - began}
            else:
                context.timings["preprocess"] = 0
                result = infer_and_postprocess(handler, arrays, context, began)
            context.stage = "outputs"
            tensors = self._outputs.read(result, inputs.rows, inputs.explain, inputs.tensors)
            del result
        except InferenceError as error:
            failure = error
        except BaseException as error:  # noqa: BLE001  a handler may raise anything
            failure = self._failed(error, context.stage, inputs)
        finally:
            timings = context.timings
            batch = context.end()
        if failure is not None:
            if batch is None or not batch.failures:
                raise failure.with_traceback(None)
            for index in range(len(inputs.requests)):
                batch.failures.setdefault(index, failure)
        if batch is None:
            return BatchOutputs(tensors, {}, timings)
        return BatchOutputs(tensors, batch.failures, timings, batch.headers, batch.parameters)

    def close(self) -> None:
        """Let the handler go, with its modules."""
        handler, context = self._handler, self._context
        self._handler = self._context = None
        if context is None:
            return
        try:
            close = getattr(handler, "close", None)
            if close is not None:
                close()
        except BaseException:
            log.exception("%s: the handler's close failed", self._shown())
        finally:
            context.modules.close()

    def _arrays(self, inputs: BatchInputs) -> Any:
        """The inputs as the default preprocess returns them, or None where it has work to do."""
        if not self._passes_inputs_through or inputs.explain or self._handler.model is not None:
            return None
        tensors = inputs.tensors
        for tensor in tensors.values():
            if type(tensor.data) is not np.ndarray:
                return None
        if len(tensors) == 1:
            return tensor.data
        return {name: tensor.data for name, tensor in tensors.items()}

    def _batch_of(self, inputs: BatchInputs) -> Batch:
        return Batch(inputs, self._nchw_inputs, self._device, self._send)

    def _device(self) -> Any:
        device = getattr(self._handler, "device", None)
        return self._context.device if device is None and self._context is not None else device

    def _send(self, inputs: BatchInputs, result: Any) -> bool:
        if inputs.emit is None:
            return False
        tensors = self._outputs.read(result, inputs.rows, inputs.explain, inputs.tensors)
        inputs.emit(BatchOutputs(tensors))
        return True

    def _failed(self, error: BaseException, stage: str, inputs: BatchInputs) -> KsrvError:
        ids = [quote(request.id) if request.id else "-" for request in inputs.requests[:SHOWN_IDS]]
        more = len(inputs.requests) - len(ids)
        shown = ", ".join(ids) + (f" and {more} more" if more else "")
        log.error("%s failed in %s; requests: %s", self._shown(), stage, shown, exc_info=error)
        if isinstance(error, KsrvError):
            return error
        if isinstance(error, CompileError):
            text = without_paths(str(error), self.source.folder, self.source.root)
            return ModelFailed(f"{self._shown()} cannot serve: {text}")
        return HandlerFailed(
            f"the stage {stage} of {self._shown()} failed with {type(error).__name__}"
        )

    def _shown(self) -> str:
        version = f" version {self.source.version}" if self.source.version else ""
        return f"the model {self.source.name}{version}"


def complete_spec(handler: Any, context: Context) -> ModelSpec:
    """Return the declared spec, completed by the handler and the model file.

    Args:
        handler: The handler, initialized.
        context: Its context.

    Returns:
        The complete spec.
    """
    spec, loaded = context.spec, context.loaded
    if isinstance(handler, BaseHandler):
        spec = handler.declare(spec)
    # Without torch there is the CPU; asking would import it only to learn that.
    chosen = loaded is not None or context.config.device != "auto" or "torch" in sys.modules
    device = context.device if chosen else "cpu"
    if loaded is None:
        return replace(spec, platform="python", device=device)
    if _keeps(handler, "preprocess"):
        check_inputs(spec, loaded)
    return replace(
        spec,
        device=device,
        platform=loaded.platform,
        inputs=spec.inputs or (loaded.inputs if _keeps(handler, "preprocess") else ()),
        outputs=spec.outputs or (loaded.outputs if _keeps(handler, "postprocess") else ()),
    )


def check_inputs(spec: ModelSpec, loaded: LoadedModel) -> None:
    """Refuse declared inputs that the model file, which knows its own, cannot take.

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
            f"model.yaml declares the inputs {', '.join(one.name for one in spec.inputs)}; "
            f"the model file has {', '.join(one.name for one in loaded.inputs)}"
        )
    names = {one.name for one in loaded.inputs}
    by_name = names == {one.name for one in spec.inputs}
    for index, declared in enumerate(spec.inputs):
        own = next(
            (one for one in loaded.inputs if by_name and one.name == declared.name),
            loaded.inputs[index],
        )
        if own.datatype != declared.datatype:
            raise ModelLoadError(
                f"model.yaml declares the input {declared.name!r} as {declared.datatype}; "
                f"in the model file {own.name!r} is {own.datatype}"
            )


def _keeps(handler: Any, stage: str) -> bool:
    """Whether a handler keeps the default of a stage, of `inference` and of `handle`."""
    return all(_is_default(handler, name) for name in (stage, "inference", "handle"))


def _is_default(handler: Any, name: str) -> bool:
    own = getattr(type(handler), name, None) is getattr(BaseHandler, name)
    return own and name not in getattr(handler, "__dict__", ())
