"""Drives a handler written for TorchServe, as `ksrv.handlers.runner.Runner` drives ksrv's handlers.

The handler gets TorchServe's context and rows, and returns a list of items. The engine gives and gets the same batches
as with any other handler. `call_forms.py` has the differences between the protocols over which requests arrive.
"""

import logging
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ksrv._native.batch.stages import BoundContext
from ksrv.dialects import stand_ins
from ksrv.dialects.foreign_runner import ForeignRunner
from ksrv.dialects.torchserve.api import answers, streaming
from ksrv.dialects.torchserve.api.context import Context, RequestProcessor, RunFields
from ksrv.dialects.torchserve.api.entry import find_entry
from ksrv.dialects.torchserve.api.envelopes import find_envelope
from ksrv.dialects.torchserve.api.frames import read_answers
from ksrv.dialects.torchserve.api.metrics import Metrics
from ksrv.dialects.torchserve.calls import FORMAT, KSERVE_V2, ROUTES, ROUTES_V1
from ksrv.dialects.torchserve.runner import rows
from ksrv.dialects.torchserve.runner.call_forms import (
    Call,
    CallForm,
    KServeEnvelopeForm,
    KServeForm,
    KServeV1Form,
    LoadedHandler,
    RoutesForm,
)
from ksrv.dialects.torchserve.settings.metrics_file import DEFAULT_METRICS
from ksrv.dialects.torchserve.shims import torchvision, ts
from ksrv.errors import HandlerFailed, quote
from ksrv.handlers.batch_threads import working_for
from ksrv.handlers.devices.choice import choose_device
from ksrv.handlers.devices.lost import is_lost
from ksrv.handlers.diagnostics.debugging import add_traceback
from ksrv.handlers.streaming.streams import may_stream
from ksrv.model.config import ModelConfig
from ksrv.model.spec import ModelSpec, TensorSpec
from ksrv.request import Emitter, ExecutorInputs, ExecutorOutputs, Tensor

log = logging.getLogger("ksrv.dialects.torchserve")

UNDECLARED_INPUT = TensorSpec("data", "BYTES", (-1,))
"""The input in the metadata of a model that declares none. Requests may have any inputs."""
UNDECLARED_OUTPUT = TensorSpec(answers.OUTPUT, "BYTES", (-1,))


class TorchServeRunner(ForeignRunner):
    """One instance of a handler. The thread of the instance, or the main thread of the handler process, runs it."""

    _forms: Mapping[str, CallForm] = {}  # by the dialect of requests; "" is KServe v2
    _context: Context | None = None

    def _load(self, config: ModelConfig) -> ModelSpec:
        self._archive: dict[str, Any] = config.dialect[FORMAT]
        self._envelope = config.envelope or ""
        folder = self.source.folder
        stand_ins.install(ts.TsFinder(self.source.name))
        if self._archive.get("torchvision", True):
            stand_ins.install(torchvision.TorchvisionFinder(self.source.name))
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
        self._hold_sources(folder)
        if self._threads and config.model and not config.model.endswith(".onnx"):
            import torch

            torch.set_num_threads(self._threads)
        self._context = self._make_context(config.device)
        handler = self._archive["manifest"]["model"]["handler"]
        bare, self._service = find_entry(handler, folder, self._context)
        enveloped = bare
        if self._envelope:
            enveloped = find_envelope(self._envelope, folder)(bare).handle
        most_rows = config.batching.max_batch_size if config.batching else 1
        decode = self._archive.get("decode", True)
        name, envelope = self.source.name, self._envelope
        loaded = LoadedHandler(name, bare, enveloped, envelope, decode, most_rows)
        self._forms = {
            ROUTES: RoutesForm(loaded),
            ROUTES_V1: KServeV1Form(loaded),
            "": (KServeEnvelopeForm if envelope == KSERVE_V2 else KServeForm)(loaded),
        }
        spec = config.spec(name, self.source.version)
        outputs = () if envelope == KSERVE_V2 else (UNDECLARED_OUTPUT,)
        return replace(
            spec,
            platform="torchserve",
            inputs=spec.inputs or (UNDECLARED_INPUT,),
            outputs=spec.outputs or outputs,
            accepts_any_inputs=not spec.inputs,
            device=str(getattr(self._service, "device", None) or "cpu"),
            may_stream=may_stream(self._service),
        )

    def _make_context(self, wanted: str) -> Context:
        device = choose_device(wanted, self.source.first_device + self._instance)
        kind, _, index = device.partition(":")
        gpu = int(index or 0) if kind != "cpu" else None
        if gpu is not None and (ids := self._archive.get("device_ids")):
            gpu = ids[self._instance % len(ids)]  # instances take the ids in turn
        return Context(
            model_name=self._archive["manifest"]["model"].get("modelName", self.source.name),
            model_dir=str(self.source.folder),
            manifest=self._archive["manifest"],
            batch_size=self._archive.get("batch_size", 1),
            gpu=gpu,
            mms_version=ts.VERSION,
            metrics=Metrics(
                self.source.name, self._emit, self._archive.get("metrics") or DEFAULT_METRICS
            ),
            model_yaml_config=self._archive.get("config") or {},
        )

    def _run(self, inputs: ExecutorInputs) -> ExecutorOutputs:
        form = self._forms.get(inputs.requests[0].dialect)
        if self._context is None or form is None:
            raise self._not_loaded()
        if rows.is_description(inputs):
            return self._description()
        call = form.call(inputs)
        if call.refused and not call.rows:
            return ExecutorOutputs([], dict(call.refused))
        self._context.newest = RunFields()
        bound = BoundContext(self._context, inputs, self._context.newest)
        try:
            with working_for(bound):
                return self._call_handler(inputs, call, form)
        finally:
            bound.release()

    def _call_handler(self, inputs: ExecutorInputs, call: Call, form: CallForm) -> ExecutorOutputs:
        assert self._context is not None
        self._begin(inputs, call.owners, form)
        self._context.rows_are_requests = call.entry is form.handler.bare
        start = time.perf_counter_ns()
        try:
            items = answers.checked_items(call.entry(call.rows, self._context), len(call.rows))
        except SystemExit:  # ends the handler process, if there is one, as with TorchServe
            raise
        except BaseException as error:  # noqa: BLE001  a handler may raise anything
            return self._failed(error, inputs, form)
        taken = time.perf_counter_ns() - start
        assert self._context.metrics is not None
        self._context.metrics.add_time("PredictionTime", round(taken / 1e6, 2))
        outputs = form.outputs(call, items, self._context)
        outputs.failures.update(call.refused)
        outputs.timings = {"inference": taken}
        return outputs

    def _begin(self, inputs: ExecutorInputs, owners: list[int], form: CallForm) -> None:
        """Fill the context with the fields of a batch."""
        context = self._context
        assert context is not None
        requests = inputs.requests
        ids = _distinct([request.id for request in requests])
        context.request_ids = {row: ids[index] for row, index in enumerate(owners)}
        context.request_processor = [
            RequestProcessor(form.request_headers(requests[index], inputs)) for index in owners
        ]
        if context.metrics is not None:
            context.metrics.request_ids = context.request_ids
        # A chunk has an element for each row of the batch, so the handler's rows must be the same rows.
        emit = inputs.emit if len(owners) == inputs.rows else None
        context.cl_socket = _Chunks(context, emit, owners, form)

    def _failed(
        self, error: BaseException, inputs: ExecutorInputs, form: CallForm
    ) -> ExecutorOutputs:
        """Log the error of a batch, and return it as the answer to each request."""
        ids = ", ".join(quote(request.id) for request in inputs.requests[:8])
        log.error("the model %s failed; requests: %s", self.source.name, ids, exc_info=error)
        if is_lost(error):
            self.on_device_lost(str(getattr(self._service, "device", "cuda")))
        failure = form.failure(error)
        if self.source.debug and not answers.is_prediction_exception(error):
            add_traceback(failure, error, inputs, self.source.folder)
        return ExecutorOutputs([], dict.fromkeys(range(len(inputs.requests)), failure))

    def _description(self) -> ExecutorOutputs:
        """Return the handler's description of its model, as one JSON element."""
        describe = getattr(self._service, "describe_handle", None)
        try:
            element, _ = answers.torchserve_item(describe() if callable(describe) else None)
        except BaseException as error:
            log.error("the model %s cannot be described", self.source.name, exc_info=error)
            raise HandlerFailed(
                f"describe_handle failed with {type(error).__name__}; the server's log has its traceback"
            ) from error
        return ExecutorOutputs([Tensor(answers.OUTPUT, "BYTES", (1,), [element])])

    def close(self) -> None:
        """Release the handler and its context."""
        self._service = self._context = None
        self._forms = {}


class _Chunks:
    """Takes intermediate answers, like `context.cl_socket` in TorchServe.

    Args:
        context: The handler's context, which knows the ids of the rows.
        emit: Takes chunks for the requests of the batch; None if no client streams.
        owners: See `Call.owners`.
    """

    def __init__(
        self, context: Context, emit: Emitter | None, owners: Sequence[int], form: CallForm
    ) -> None:
        self._context = context
        self._emit = emit
        self._owners = owners
        self._form = form

    def send(self, items: Mapping[int, Any]) -> None:
        """Send one chunk to the request of each row that has an item."""
        if self._emit is None:
            return
        self._emit(self._form.chunk(items, self._owners))

    def sendall(self, frame: bytes | bytearray) -> None:
        """Send a frame that the real torchserve's `send_intermediate_predict_response` wrote."""
        found = read_answers(frame)
        streaming.send_intermediate_predict_response(
            list(found.values()), dict(enumerate(found)), "", 200, self._context
        )

    def listening(self, row: int | None) -> bool:
        """Whether a client still waits for the batch, or for one row of it."""
        if self._emit is None:
            return True
        waiting = self._emit.listening()
        return bool(waiting) if row is None else self._owners[row] in waiting


def _distinct(ids: Sequence[str]) -> list[str]:
    """Return unique ids for the requests of a batch, because the ids of clients may be equal."""
    seen: dict[str, None] = {}
    for given in ids:
        unique = given if given and given not in seen else str(uuid.uuid4())
        seen[unique] = None
    return list(seen)
