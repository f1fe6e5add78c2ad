"""Drives one handler: loads it, runs batches through it, and turns whatever it does into answers.

Both executors use it: the inline one on a thread of the server, the process one in its child.
"""

import asyncio
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from importlib import import_module
from time import perf_counter_ns
from types import CoroutineType
from typing import Any, cast

from ksrv._native.batch.stages import StageRunner
from ksrv._native.memory.buffer_pool import Block
from ksrv.compile_plan import CompileError
from ksrv.errors import (
    Cancelled,
    DeadlineExceeded,
    DeviceLost,
    HandlerFailed,
    InferenceError,
    KsrvError,
    ModelFailed,
    quote,
    without_paths,
)
from ksrv.handlers.answer_headers import excess
from ksrv.handlers.base import BaseHandler
from ksrv.handlers.batch import Batch
from ksrv.handlers.batch_argument import pass_batch
from ksrv.handlers.context import Context
from ksrv.handlers.declared.declarations import declared_tensors
from ksrv.handlers.deferred import DeferredHandler, Result
from ksrv.handlers.devices.choice import DeviceError
from ksrv.handlers.devices.device import Device, Lease, torch_tensor
from ksrv.handlers.devices.graphs import GraphedModel
from ksrv.handlers.devices.lost import note_lost
from ksrv.handlers.diagnostics.debugging import add_traceback, profiled
from ksrv.handlers.diagnostics.metrics import Emit, Metrics, discard
from ksrv.handlers.handler_context import HandlerContext
from ksrv.handlers.loading import make_handler
from ksrv.handlers.model_imports import HandlerError, error_location
from ksrv.handlers.models import Submit, calls_models, refuse_calls
from ksrv.handlers.outputs import OutputConverter
from ksrv.handlers.sequences import SequenceStates
from ksrv.handlers.streaming.concurrent import (
    ConcurrentBatches,
    CurrentContext,
    Done,
    is_asynchronous,
)
from ksrv.handlers.streaming.streams import BatchStream, HandlerLoop, is_stream, run_generator
from ksrv.imported_torch import imported_torch
from ksrv.loaders.loaded import LoadedModel, ModelLoadError
from ksrv.request import Array, BatchInputs, BatchOutputs, BatchRequest, Tensor
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
    if source.debug:
        runner.run = profiled(runner.run)  # type: ignore[assignment, method-assign]
    return runner


class Runner(StageRunner):
    """One instance of a model version.

    Args:
        source: The version on disk.
        instance: The instance's number.
        threads: CPU threads that it may use; 0 leaves the framework's choice.
        emit: Takes the values that the handler reports with `context.metrics`.

    Attributes:
        submit: Submits what the handler calls; set before `load`.
        on_device_lost: Called with the name of a device that works no more in this process.
        device: The way to the handler's device.
        lease_answer: Leases the memory that outputs on a device are copied to; None for the device's own.
        sequences: The states of the sequences that it serves.
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
        self.outputs = OutputConverter(ModelSpec(source.name))
        self.device = Device("cpu")
        self.lease_answer: Lease | None = None
        self._handlers_device: Any = None
        self._nchw_inputs: frozenset[str] = frozenset()
        self._loop = HandlerLoop()
        self.submit: Submit = refuse_calls
        self.on_device_lost: Callable[[str], None] = note_lost
        self.sequences = SequenceStates()
        self._serves_sequences = False
        self._concurrent: ConcurrentBatches | None = None

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
            handler = self._make_handler(config, context)
            context.apply_torch_settings()
            if isinstance(handler, BaseHandler):
                handler.context = context
                context.spec = declared_spec(handler, context.spec)
            if hasattr(handler, "initialize"):
                handler.initialize(context)
            context.spec = replace(
                complete_spec(handler, context),
                calls_models=calls_models(handler),
                concurrency=config.concurrent_batches if is_asynchronous(handler) else 0,
            )
            if isinstance(handler, BaseHandler):
                if context.spec.concurrency:
                    handler.context = cast(Context, CurrentContext(context))
                pass_batch(handler, sequences=config.sequences is not None)
        except BaseException as error:  # a script that is imported may end with sys.exit
            context.modules.close()
            if not isinstance(error, EXPECTED):
                log.error("%s cannot be loaded", self._shown(), exc_info=error)
            raise HandlerLoadError(
                f"{self._shown()} cannot be loaded: {type(error).__name__}: {error}"
                f"{error_location(self.source.root, error)}"
            ) from error
        self.handler = handler
        self.context = context
        self._serves_sequences = config.sequences is not None
        self._use_device(context)
        self.outputs = OutputConverter(
            context.spec, self.device.fetch if self.device.has_stream else None
        )
        self.declared = self.outputs.fixed
        self._nchw_inputs = frozenset(
            entry.name
            for entry in context.spec.inputs
            if entry.image is not None and entry.image.model_layout == "NCHW"
        )
        self.passes_inputs_through = (
            isinstance(handler, BaseHandler)
            and all(_is_default(handler, name) for name in ("handle", "preprocess"))
            and context.loaded is None
            and not self._nchw_inputs
            and config.sequences is None
        )
        return context.spec

    def _use_device(self, context: HandlerContext) -> None:
        loaded = context.loaded
        if imported_torch() is None or (loaded is not None and not loaded.is_torch):
            return  # ONNX Runtime has copies and streams of its own
        if context.spec.device != context.device:
            return
        self.device = context.opened_device
        if self.lease_answer is not None:
            self.device.lease_answer = self.lease_answer
        if self.device.has_stream:
            self.run = on_device(self, self.run)  # type: ignore[assignment, method-assign]
        model = getattr(self.handler, "model", None)
        if isinstance(model, GraphedModel):
            stages = ("handle", "inference", "postprocess", "explain")
            model.clones = not all(_is_default(self.handler, one) for one in stages)

    def _make_handler(self, config: ModelConfig, context: HandlerContext) -> Any:
        return make_handler(config.handler, context.modules)

    def begin(self, inputs: BatchInputs, done: Done) -> Callable[[], None]:
        """Run a batch beside others, on the event loop of a handler with coroutines or as the handler does it.

        Args:
            inputs: The batch.
            done: Called once with its answer.

        Returns:
            A function that cancels it.
        """
        if isinstance(self.handler, DeferredHandler):
            return self._begin_deferred(self.handler, inputs, done)
        if self._concurrent is None:
            self._concurrent = ConcurrentBatches(self)
        return self._concurrent.begin(inputs, done)

    def _begin_deferred(
        self, handler: DeferredHandler, inputs: BatchInputs, done: Done
    ) -> Callable[[], None]:
        began = perf_counter_ns()

        def ended(result: Result) -> None:
            if isinstance(result, Cancelled):
                done(result)
                return
            try:
                if isinstance(result, BaseException):
                    raise result
                tensors = self.read_outputs(result, inputs)
            except BaseException as error:  # noqa: BLE001  a handler may raise anything
                done(self.failure_of(error, "inference", inputs))
                return
            done(BatchOutputs(tensors, timings={"inference": perf_counter_ns() - began}))

        try:
            return handler.begin(inputs, ended)
        except BaseException as error:  # noqa: BLE001  the thread serves other batches as well
            ended(error)
            return lambda: None

    def close(self) -> None:
        """Let the handler go, with its modules."""
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

    def _not_loaded(self) -> HandlerFailed:
        return HandlerFailed(f"{self._shown()} is not loaded")

    def _fail_rest(self, failure: KsrvError, batch: Batch | None, inputs: BatchInputs) -> None:
        """Fail the requests of a batch that have not failed for reasons of their own."""
        if batch is None or not batch.failures:
            raise failure.with_traceback(None)
        for index in range(len(inputs.requests)):
            batch.failures.setdefault(index, failure)

    def make_batch(self, inputs: BatchInputs) -> Batch:
        """Return a batch as handlers see it.

        Args:
            inputs: The batch as the engine made it.
        """
        batch = Batch(inputs, self._nchw_inputs, self._put, self._send)
        if self._serves_sequences:
            batch.sequences = self.sequences.of_batch(inputs, batch.failures)
        return batch

    def _put(self, array: Array) -> Any:
        device = getattr(self.handler, "device", None)
        if device is None or device is self._handlers_device:
            return self.device.put(array)
        if str(device) == self.device.name:
            self._handlers_device = device
            return self.device.put(array)
        return torch_tensor(array).to(device)  # a handler may choose another device for itself

    def lease(self, nbytes: int) -> Block:
        """Return memory for a batch that the handler is going to get.

        Args:
            nbytes: How many bytes.

        Raises:
            MemoryError: There is none.
        """
        return self.device.lease(nbytes)

    def _send(self, inputs: BatchInputs, result: Any, headers: dict[int, dict[str, str]]) -> bool:
        if inputs.emit is None:
            return False
        outputs = BatchOutputs(self.read_outputs(result, inputs), headers=headers)
        sender: Any = inputs.emit
        if self._concurrent is not None and _on_event_loop():
            sender.offer(outputs)  # waiting for one slow client would hold up all other batches
        else:
            sender(outputs)
        return True

    def _drain(self, result: Any, inputs: BatchInputs) -> list[Tensor]:
        """Run a handler that answers piece by piece, or later, to its end."""
        context = self.context
        assert context is not None, "a batch runs on a loaded handler"
        began = perf_counter_ns()
        try:
            with inference_mode():
                if type(result) is CoroutineType:
                    result = self._loop.run(result)
                if not is_stream(result):
                    return self.read_outputs(result, inputs)
                stream = BatchStream(
                    inputs,
                    partial(self.read_outputs, inputs=inputs),
                    context.made_batch,
                    partial(self._fail_row, inputs=inputs),
                )
                run_generator(result, stream, self._loop)
                return stream.result()
        finally:
            context.add_time("inference", perf_counter_ns() - began)

    def read_outputs(self, result: Any, inputs: BatchInputs) -> list[Tensor]:
        """Return the tensors of a handler's result.

        Args:
            result: What the handler returned, or yielded.
            inputs: The batch.

        Raises:
            KsrvError: It does not fit the batch.
        """
        made: list[Tensor] = self.outputs.read(result, inputs.rows, inputs.explain, inputs.tensors)
        self.device.finish()
        return made

    @contextmanager
    def inference_mode(self) -> Iterator[None]:
        """Have a thread work for the handler: on its device, in torch's inference mode."""
        with self.device.running(), inference_mode():
            yield

    def failure_of(self, error: BaseException, stage: str, inputs: BatchInputs) -> KsrvError:
        """Return what clients are told of an error of the handler; the log has its traceback.

        Not so of refusals and deadlines of the models that it calls: those are logged as for any request.

        Args:
            error: The error.
            stage: The stage that raised it.
            inputs: The batch.
        """
        return self._failed(error, stage, inputs)

    def _fail_row(self, row: int, error: BaseException, *, inputs: BatchInputs) -> None:
        assert self.context is not None, "a batch runs on a loaded handler"
        batch = self.context.batch
        failure = self._failed(error, "inference", inputs)
        batch.failures.setdefault(batch.request_of(row), failure)

    def _failed(self, error: BaseException, stage: str, inputs: BatchInputs) -> KsrvError:
        if isinstance(error, InferenceError):
            return excess(error.headers) or error
        if isinstance(error, (Cancelled, DeadlineExceeded)):
            return error
        if isinstance(error, KsrvError) and error.reason:
            return error  # the refusal of a model that the handler called
        requests = inputs.requests[:SHOWN_IDS]
        more = len(inputs.requests) - len(requests)
        shown = ", ".join(map(_shown_ids, requests)) + (f" and {more} more" if more else "")
        fields = {"request_ids": [one.headers.get("x-request-id", "") for one in requests]}
        text = "%s failed in %s; requests: %s"
        log.error(text, self._shown(), stage, shown, exc_info=error, extra=fields)
        if isinstance(error, KsrvError):
            return error
        of_device = self.device.failure_of(error)
        if isinstance(of_device, DeviceLost):
            self.on_device_lost(self.device.name)
        if of_device is not None:
            return of_device
        if isinstance(error, CompileError):
            text = without_paths(str(error), self.source.folder, self.source.root)
            return ModelFailed(f"{self._shown()} cannot serve: {text}")
        failure = HandlerFailed(
            f"the stage {stage} of {self._shown()} failed with {type(error).__name__}"
        )
        if self.source.debug:
            add_traceback(failure, error, inputs, self.source.folder, self.source.root)
        return failure

    def _shown(self) -> str:
        version = f" version {self.source.version}" if self.source.version else ""
        return f"the model {self.source.name}{version}"


def _shown_ids(request: BatchRequest) -> str:
    """Return a request's id, and the `id` that its client gave it in the protocol."""
    name = request.headers.get("x-request-id", "-")
    return f"{name} (id {quote(request.id)})" if request.id and request.id != name else name


def _on_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def inference_mode() -> AbstractContextManager[Any]:
    """Return torch's inference mode where torch is there."""
    torch = imported_torch()
    return nullcontext() if torch is None else torch.inference_mode()


def on_device(
    runner: Runner, run: Callable[[BatchInputs], BatchOutputs]
) -> Callable[[BatchInputs], BatchOutputs]:
    """Return a function that runs batches on a runner's device, and waits for what they left there.

    Args:
        runner: The runner.
        run: Runs one batch.
    """

    def run_on_device(inputs: BatchInputs) -> BatchOutputs:
        try:
            with runner.device.running():
                return run(inputs)
        except KsrvError:
            raise
        except Exception as error:  # noqa: BLE001  of a kernel whose output nobody asked for
            raise runner.failure_of(error, "outputs", inputs) from None

    return run_on_device


def declared_spec(handler: BaseHandler, spec: ModelSpec) -> ModelSpec:
    """Return the spec of the settings, completed by the tensors that the handler's code declares.

    Args:
        handler: The handler.
        spec: The spec by the settings alone, whose tensors win.
    """
    inputs, outputs = declared_tensors(handler)
    return replace(spec, inputs=spec.inputs or inputs, outputs=spec.outputs or outputs)


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
        return replace(spec, platform=context.config.platform or "python", device=device)
    if _keeps(handler, "preprocess"):
        check_inputs(spec, loaded)
    return replace(
        spec,
        device=device,
        platform=context.config.platform or loaded.platform,
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
