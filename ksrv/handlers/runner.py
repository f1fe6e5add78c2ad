"""`Runner`: loads one handler, runs batches through it, and closes it.

The base classes run the stages (`StageRunner`, compiled) and read results and errors (`BaseRunner`). Both executors use
a runner: the inline executor on a thread of the server, the process executor in the handler process.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from time import perf_counter_ns
from types import CoroutineType
from typing import Any, cast

from ksrv.errors import HandlerFailed, KsrvError
from ksrv.handlers.base import BaseHandler
from ksrv.handlers.base_runner import BaseRunner, inference_mode
from ksrv.handlers.batch import Batch, check_answers, fail_rest
from ksrv.handlers.batch_argument import pass_batch
from ksrv.handlers.batch_threads import pass_batches_on
from ksrv.handlers.concurrent import ConcurrentLoop, CurrentContext, Done, is_asynchronous
from ksrv.handlers.context import Context
from ksrv.handlers.declared.completion import add_steps, complete_spec, declared_spec, keeps
from ksrv.handlers.declared.declarations import (
    check_call,
    check_settings,
    check_stages,
    is_default,
    serve_rows,
)
from ksrv.handlers.devices.device import Lease
from ksrv.handlers.devices.graphs import GraphedModel
from ksrv.handlers.diagnostics.debugging import Run, profiled
from ksrv.handlers.diagnostics.metrics import Emit, Metrics, discard
from ksrv.handlers.handler_context import HandlerContext
from ksrv.handlers.imports.folder_modules import HandlerError, error_with_location
from ksrv.handlers.imports.initialize_lock import initialized_alone
from ksrv.handlers.imports.loaded_files import changed_file
from ksrv.handlers.imports.own_writes import watch
from ksrv.handlers.loading import make_handler
from ksrv.handlers.models import Submit, refuse_calls
from ksrv.handlers.outputs import OutputConverter
from ksrv.handlers.streaming.streams import (
    ChunkStream,
    HandlerLoop,
    is_stream,
    may_stream,
    run_generator,
)
from ksrv.loaders.loaded import ModelLoadError
from ksrv.model.config import ModelConfig, ModelSource
from ksrv.model.fault import ConfigError
from ksrv.model.spec import ModelSpec
from ksrv.request import ExecutorInputs, ExecutorOutputs
from ksrv.torch_interop import imported_torch

log = logging.getLogger("ksrv.handlers")

Step = Callable[[Run, ExecutorInputs], ExecutorOutputs]
"""Runs a batch by calling the given function, and does more before or after it."""

# Errors that are logged without a traceback, which would only show code of ksrv.
EXPECTED = (ModelLoadError, HandlerError, ConfigError)


class HandlerLoadError(Exception):
    """A handler or model that could not be loaded; the text names it and the reason."""


def make_runner(
    source: ModelSource, *, instance: int = 0, threads: int = 0, emit: Emit = discard
) -> "Runner":
    """Return the runner that the model's settings name: `Runner`, or a subclass for models of a dialect.

    Args:
        threads: CPU threads that the handler may use; 0 for the default of the framework.
        emit: Takes the values that the handler reports.

    Raises:
        HandlerLoadError: The runner is unknown.
    """
    pass_batches_on()
    named = source.config.runner if source.config else ModelConfig().runner
    module, _, name = named.partition(":")
    try:
        make = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        remedy = f"; pip install {error.name}" if isinstance(error, ModuleNotFoundError) else ""
        raise HandlerLoadError(f"the runner {named} cannot be imported: {error}{remedy}") from error
    runner: Runner = make(source, instance=instance, threads=threads, emit=emit)
    return runner


def load_unchanged(runner: "Runner", source: ModelSource) -> ModelSpec:
    """Load a version, and fail if one of its files changed during the load.

    Raises:
        HandlerLoadError: See `Runner.load`; or a file has changed.
    """
    if source.loaded is None:
        return runner.load()
    watch((mark.path for mark in source.loaded.marks), source.loaded.notes)
    spec = runner.load()
    try:
        file = changed_file(source)
    except HandlerFailed as error:
        runner.close()
        raise HandlerLoadError(error.message) from error
    if file:
        runner.close()
        raise HandlerLoadError(
            f"the model {source.name} cannot be loaded, because its file {file} changed while it was loaded; "
            f"load the model again once all of its files are in place. If the handler writes the file with compiled "
            f"code, as torch.save does, let it write under a name that is not there yet, or outside of the folder"
        )
    return spec


class Runner(BaseRunner):
    """One instance of a model version.

    Args:
        threads: CPU threads that the handler may use; 0 for the default of the framework.
        emit: Takes the values that the handler reports with `context.metrics`.

    Attributes:
        submit: Submits the handler's calls to other models; set before `load`.
        lease_answer: Leases the memory that outputs on a device are copied to; None for the device's memory.
    """

    def __init__(
        self,
        source: ModelSource,
        *,
        instance: int = 0,
        threads: int = 0,
        emit: Emit = discard,
    ) -> None:
        super().__init__(source)
        self._instance = instance
        self._threads = threads
        self._emit = emit
        self._metrics = Metrics(source.name, source.version, emit)
        self.lease_answer: Lease | None = None
        self._loop = HandlerLoop()
        self.submit: Submit = refuse_calls
        self._concurrent: ConcurrentLoop | None = None

    def load(self) -> ModelSpec:
        """Import the handler, let it initialize, and prepare to run batches.

        Returns:
            The model's spec, completed by the inputs and outputs of the model file.

        Raises:
            HandlerLoadError: Settings, handler or model file are at fault; the cause is chained.
        """
        config = self.source.config
        if config is None or self.source.error:
            raise HandlerLoadError(self.source.error or f"{self.source.folder} has no settings")
        context = HandlerContext(
            self.source,
            config,
            instance=self._instance,
            threads=self._threads,
            metrics=self._metrics,
            make_batch=self.make_batch,
            submit=self.submit,
        )
        try:
            handler = self._initialized(config, context)
        except BaseException as error:  # an imported script may end with sys.exit
            remedy = context.modules.remedy(error)
            context.modules.close()
            if not isinstance(error, EXPECTED):
                log.error("%s cannot be loaded", self._shown(), exc_info=error)
            raise HandlerLoadError(
                f"{self._shown()} cannot be loaded: {error_with_location(self.source.root, error)}{remedy}"
            ) from error
        self._prepare_runs(config, context, handler)
        return context.spec

    def _initialized(self, config: ModelConfig, context: HandlerContext) -> Any:
        """Return the initialized handler. Completes `context.spec`, and refuses a handler that cannot be called."""
        with initialized_alone(self.source.name, config.start_timeout_s):
            handler = self._make_handler(config, context)
            check_settings(handler, config.given)
            check_stages(handler)
            context.apply_torch_settings()
            if isinstance(handler, BaseHandler):
                handler.context = context
                serve_rows(handler, context.spec)
                context.passes_inputs = keeps(handler, "preprocess")
                context.passes_outputs = keeps(handler, "postprocess")
                context.spec = declared_spec(handler, context.spec)
            add_steps(handler, context)
            if hasattr(handler, "initialize"):
                handler.initialize(context)
        context.spec = replace(
            complete_spec(handler, context),
            calls_models=bool(config.needs),
            concurrency=config.concurrent_batches if is_asynchronous(handler) else 0,
            may_stream=may_stream(handler),
        )
        check_call(handler, context.spec, sequences=config.sequences is not None)
        if isinstance(handler, BaseHandler):
            if context.spec.concurrency:
                handler.context = cast(Context, CurrentContext(context))
            pass_batch(handler, sequences=config.sequences is not None)
        return handler

    def _prepare_runs(self, config: ModelConfig, context: HandlerContext, handler: Any) -> None:
        """Set the fields that the compiled part of the runner (`StageRunner`, described there) needs for each batch."""
        context.passes_outputs_through = isinstance(handler, BaseHandler) and is_default(
            handler, "postprocess"
        )
        self.handler = handler
        self.context = context
        self.serves_sequences = config.sequences is not None
        self.runs_file = context.loaded is not None and keeps(handler, "preprocess")
        # Only a model file takes texts: code of the handler gets BYTES as bytes.
        if context.loaded is not None and not self.runs_file:
            context.loaded = replace(context.loaded, takes_texts=False)
        self._use_device(context)
        self.steps = self._steps_of(context)
        self.outputs = OutputConverter(
            context.spec, self.device.fetch if self.device.has_stream else None
        )
        self.declared = self.outputs.fixed
        self.layouts = {
            entry.name: entry.image.model_layout
            for entry in context.spec.inputs
            if entry.image is not None
        }
        self.passes_inputs_through = (
            isinstance(handler, BaseHandler)
            and all(is_default(handler, name) for name in ("handle", "preprocess"))
            and context.loaded is None
            and "NCHW" not in self.layouts.values()
            and config.sequences is None
            and not context.spec.has_optional_inputs
        )
        self.optional_inputs = tuple(entry.name for entry in context.spec.inputs if entry.optional)

    def _use_device(self, context: HandlerContext) -> None:
        """Use the chosen device for the copies of tensors, if the model uses torch."""
        loaded = context.loaded
        if imported_torch() is None or (loaded is not None and not loaded.is_torch):
            return  # ONNX Runtime makes its copies and streams itself
        if context.spec.device != context.device:
            return
        self.device = context.opened_device
        if self.lease_answer is not None:
            self.device.lease_answer = self.lease_answer
        model = getattr(self.handler, "model", None)
        if isinstance(model, GraphedModel):
            stages = ("handle", "inference", "postprocess", "explain")
            # If all of these are default stages, the handler cannot keep an output.
            model.clones = not all(is_default(self.handler, stage) for stage in stages)

    def _steps_of(self, context: HandlerContext) -> list[Step]:
        """Return the steps around each batch, outermost first."""
        steps: list[Step] = []
        if self.device.has_stream:
            steps.append(self._run_on_device)
        if context.loaded is not None and context.loaded.forget is not None:
            steps.append(partial(run_forgotten, context.loaded.forget))
        if self.source.debug:
            steps.append(profiled)
        return steps

    def _run_on_device(self, run: Run, inputs: ExecutorInputs) -> ExecutorOutputs:
        """Run a batch on the device, and wait for the operations that it has queued there."""
        try:
            with self.device.running():
                return run(inputs)
        except KsrvError:
            raise
        except Exception as error:  # noqa: BLE001  an error of a queued kernel, which the wait at the end reports
            raise self.failure_of(error, "outputs", inputs) from None

    def _make_handler(self, config: ModelConfig, context: HandlerContext) -> Any:
        return make_handler(config.handler, context.modules)

    def serve(self, receive: Callable[[], None]) -> None:
        """Serve in the handler's process, on the thread that has loaded it.

        Args:
            receive: Receives and runs batches until no more batches can arrive. A subclass may call it in another way.
        """
        receive()

    def begin(self, inputs: ExecutorInputs, done: Done) -> Callable[[], None]:
        """Start a batch on the event loop of a handler with coroutines, while other batches run.

        Args:
            done: Called once with the answer, on the loop's thread.

        Returns:
            A function that cancels the batch.
        """
        if self._concurrent is None:
            self._concurrent = ConcurrentLoop(self)
            self.shares_loop = True
        return self._concurrent.begin(inputs, done)

    def close(self) -> None:
        """Call the handler's `close`, and free the handler, its modules and its device."""
        handler, context = self.handler, self.context
        self.handler = self.context = None
        if context is None:
            return
        try:
            close = getattr(handler, "close", None)
            if close is not None:
                close()
        except BaseException:
            log.exception("%s: the handler's close failed", self._shown())
        finally:
            if self._concurrent is not None:
                self._concurrent.close()
            self._loop.close()
            self.device.close()
            context.modules.close()

    # ---- called by `StageRunner` ------------------------------------------------------------

    def _not_loaded(self) -> HandlerFailed:
        return HandlerFailed(f"{self._shown()} is not loaded")

    def _check_answers(self, batch: Batch) -> None:
        check_answers(batch)

    def _fail_rest(self, failure: KsrvError, batch: Batch | None) -> None:
        """Raise the failure of a batch; if the handler has failed some requests itself, fail only the others."""
        if batch is None or not fail_rest(batch, failure):
            raise failure.with_traceback(None)

    def _drain(self, result: Any, inputs: ExecutorInputs) -> ExecutorOutputs:
        """Finish a batch whose result is a generator or a coroutine: run it to its end and send its chunks."""
        context = self.context
        assert context is not None, "a batch runs on a loaded handler"
        began = perf_counter_ns()
        try:
            with inference_mode():
                if type(result) is CoroutineType:
                    result = self._loop.run(result)
                if not is_stream(result):
                    return self.read_outputs(result, inputs)
                stream = ChunkStream(
                    inputs,
                    context.spec.outputs,
                    self.read_chunk,
                    context.made_batch,
                    partial(self._fail_request, inputs=inputs),
                )
                run_generator(result, stream, self._loop)
                return stream.result()
        finally:
            context.add_time("inference", perf_counter_ns() - began)

    def _fail_request(self, index: int, error: BaseException, *, inputs: ExecutorInputs) -> None:
        assert self.context is not None, "a batch runs on a loaded handler"
        failure = self.failure_of(error, "inference", inputs)
        self.context.batch.failures.setdefault(index, failure)


def run_forgotten(forget: Callable[[], None], run: Run, inputs: ExecutorInputs) -> ExecutorOutputs:
    """Run a batch on a model that keeps state, after `forget` has reset the state of the previous batch."""
    forget()
    return run(inputs)
