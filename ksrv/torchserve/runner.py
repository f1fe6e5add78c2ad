"""Drives a handler written for TorchServe, as `ksrv.handlers.runner.Runner` drives ksrv's own.

The handler sees the context, the rows and the return rule that it was written for; the engine sees
the same batches in and out as from any other handler. A batch holds requests of one dialect only:
TorchServe's own routes, or KServe v2.
"""

import logging
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ksrv.errors import HandlerFailed, InferenceError, quote
from ksrv.handlers.device import choose_device
from ksrv.handlers.metrics import Emit, discard
from ksrv.handlers.model_imports import error_location
from ksrv.handlers.runner import HandlerLoadError
from ksrv.request import BatchInputs, BatchOutputs, BatchRequest, Element, Emitter, Tensor
from ksrv.source import KSERVE_V2, ModelSource
from ksrv.spec import ModelSpec, TensorSpec
from ksrv.torchserve import answers, rows
from ksrv.torchserve.api import streaming
from ksrv.torchserve.api.context import DEFAULT_STATUS, Context, RequestProcessor
from ksrv.torchserve.api.envelopes import BARE_ENVELOPES, find_envelope
from ksrv.torchserve.api.frames import read_answers
from ksrv.torchserve.api.metrics import Metrics
from ksrv.torchserve.entry import Entry, find_entry
from ksrv.torchserve.shims import torchvision, ts
from ksrv.torchserve.wire_outputs import wire_tensors

log = logging.getLogger("ksrv.torchserve")

STATUS = ":status"
CONTENT_TYPE = ":content-type"
STREAMED = "ts_stream_next"
UNDECLARED_INPUT = TensorSpec("data", "BYTES", (-1,))
UNDECLARED_OUTPUT = TensorSpec(answers.OUTPUT, "BYTES", (-1,))


class TorchServeRunner:
    """One instance of an archive's handler.

    Args:
        source: The archive, unpacked.
        instance: The instance's number.
        threads: CPU threads that it may use; 0 leaves the framework's choice.
        emit: Takes custom metrics home.
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
        self._emit = emit
        self._bare: Entry | None = None
        self._enveloped: Entry | None = None
        self._service: Any = None
        self._context: Context | None = None
        self._archive: dict[str, Any] = {}
        self._envelope = ""

    def load(self) -> ModelSpec:
        """Import the handler and let it initialize.

        Raises:
            HandlerLoadError: The handler, its model or its settings are at fault; the cause is chained.
        """
        config = self.source.config
        if config is None or config.torchserve is None or self.source.error:
            raise HandlerLoadError(
                self.source.error or f"{self.source.folder} is no TorchServe archive"
            )
        self._archive = config.torchserve
        self._envelope = config.envelope or ""
        folder = self.source.folder
        try:
            ts.install(self.source.name)
            if self._archive.get("torchvision", True):
                torchvision.install(self.source.name)
            if str(folder) not in sys.path:
                sys.path.insert(0, str(folder))
            if self._threads and config.model and not config.model.endswith(".onnx"):
                import torch

                torch.set_num_threads(self._threads)
            self._context = self._make_context(config.device)
            handler = self._archive["manifest"]["model"]["handler"]
            self._bare, self._service = find_entry(handler, folder, self._context)
            self._enveloped = self._bare
            if self._envelope:
                envelope = find_envelope(self._envelope, folder)
                self._enveloped = envelope(self._bare).handle
        except BaseException as error:
            log.error("the model %s cannot be loaded", self.source.name, exc_info=error)
            text = " ".join(str(error).split())
            raise HandlerLoadError(
                f"the model {self.source.name} cannot be loaded: {type(error).__name__}: {text}"
                f"{error_location(folder, error)}"
            ) from error
        return self._spec()

    def _make_context(self, wanted: str) -> Context:
        device = choose_device(wanted, self._instance)
        kind, _, index = device.partition(":")
        gpu = int(index or 0) if kind != "cpu" else None
        if gpu is not None and (ids := self._archive.get("device_ids")):
            gpu = ids[self._instance % len(ids)]
        return Context(
            model_name=self._archive["manifest"]["model"].get("modelName", self.source.name),
            model_dir=str(self.source.folder),
            manifest=self._archive["manifest"],
            batch_size=self._archive.get("batch_size", 1),
            gpu=gpu,
            mms_version=ts.VERSION,
            metrics=Metrics(self.source.name, self._emit),
            model_yaml_config=self._archive.get("config") or {},
        )

    def _spec(self) -> ModelSpec:
        config = self.source.config
        assert config is not None
        spec = config.spec(self.source.name, self.source.version)
        outputs = () if self._envelope == KSERVE_V2 else (UNDECLARED_OUTPUT,)
        device = getattr(self._service, "device", None)
        return replace(
            spec,
            platform="torchserve",
            inputs=spec.inputs or (UNDECLARED_INPUT,),
            outputs=spec.outputs or outputs,
            accepts_any_inputs=not spec.inputs,
            device=str(device or "cpu"),
        )

    def run(self, inputs: BatchInputs) -> BatchOutputs:
        """Run one batch; every item that the handler returns belongs to one row.

        Raises:
            KsrvError: The whole batch failed.
        """
        if self._context is None or self._bare is None or self._enveloped is None:
            raise HandlerFailed(f"the model {self.source.name} is not loaded")
        if rows.is_description(inputs):
            return self._description()
        over_torchserve = rows.is_torchserve(inputs.requests[0])
        entry, owners, data, expected = self._call(inputs, over_torchserve)
        self._begin(inputs, owners)
        self._context.rows_are_requests = entry is self._bare
        start = time.perf_counter_ns()
        try:
            items = answers.checked_items(entry(data, self._context), expected)
        except SystemExit:  # it ends the handler's process, where it has one, as with TorchServe
            raise
        except BaseException as error:  # noqa: BLE001  a handler may raise anything
            return self._failed(error, inputs, over_torchserve)
        taken = time.perf_counter_ns() - start
        assert self._context.metrics is not None
        self._context.metrics.add_time("PredictionTime", round(taken / 1e6, 2))
        if self._envelope == KSERVE_V2 and not over_torchserve:
            outputs = self._typed(items[0])
        else:
            outputs = self._answer(items, owners, inputs, over_torchserve)
        outputs.timings = {"inference": taken}
        return outputs

    def _call(
        self, inputs: BatchInputs, over_torchserve: bool
    ) -> tuple[Entry, list[int], list[Any], int]:
        """Return the entry point, the request that owns each row, the rows, and how many items."""
        assert self._bare is not None
        assert self._enveloped is not None
        if over_torchserve:
            data: list[Any] = rows.torchserve_rows(inputs, decode=self._archive.get("decode", True))
            return self._enveloped, list(range(len(data))), data, len(data)
        if self._envelope == KSERVE_V2:
            if len(inputs.requests) != 1:
                raise HandlerFailed(
                    f"requests to the model {self.source.name}, which has the {KSERVE_V2} envelope,"
                    f" cannot be joined: leave out its batching"
                )
            return self._enveloped, [0], [{"body": rows.wire_document(inputs)}], 1
        owned = rows.wire_rows(inputs)
        owners = [index for index, _ in owned]
        if self._envelope in BARE_ENVELOPES:
            # The tensor's rows are the instances that these envelopes unwrap from JSON.
            return self._bare, owners, [value for _, value in owned], len(owned)
        return self._enveloped, owners, [{"body": value} for _, value in owned], len(owned)

    def _begin(self, inputs: BatchInputs, owners: list[int]) -> None:
        context = self._context
        assert context is not None
        requests = inputs.requests
        ids = _distinct([request.id for request in requests])
        context.request_ids = {row: ids[index] for row, index in enumerate(owners)}
        context.request_processor = [
            RequestProcessor(rows.request_headers(requests[index], inputs.tensors, inputs.explain))
            for index in owners
        ]
        if context.metrics is not None:
            context.metrics.request_ids = context.request_ids
        emit = inputs.emit if len(owners) == inputs.rows else None
        context.cl_socket = _Chunks(context, emit, owners, rows.is_torchserve(requests[0]))

    def _answer(
        self, items: list[Any], owners: list[int], inputs: BatchInputs, over_torchserve: bool
    ) -> BatchOutputs:
        elements: list[Element] = []
        outputs = BatchOutputs([])
        for row, (index, item) in enumerate(zip(owners, items, strict=True)):
            element: Element = b""
            try:
                self._raise_failure_of(row, inputs.requests[index])
                if over_torchserve:
                    element, kind = answers.torchserve_item(item)
                    outputs.headers[index] = {CONTENT_TYPE: kind}
                else:
                    element = answers.wire_element(item)
            except BaseException as error:  # noqa: BLE001  a row may have failed with anything
                outputs.failures[index] = answers.failure_of(
                    error, over_torchserve, self.source.name
                )
            elements.append(element)
            self._apply_status(row, index, element, over_torchserve, outputs)
        outputs.tensors = [Tensor(answers.OUTPUT, "BYTES", (len(elements),), elements)]
        return outputs

    def _raise_failure_of(self, row: int, request: BatchRequest) -> None:
        assert self._context is not None
        failure = self._context.request_processor[row].failure
        if failure is not None:
            name = self.source.name
            log.error(
                "the model %s failed the request %s", name, quote(request.id), exc_info=failure
            )
            raise failure

    def _apply_status(
        self, row: int, index: int, element: Element, over_torchserve: bool, outputs: BatchOutputs
    ) -> None:
        context = self._context
        assert context is not None
        headers = {
            str(name): str(value)
            for name, value in context.get_response_headers(row).items()
            if name != STREAMED  # the real torchserve's mark of a chunk
        }
        code, phrase = context.get_response_status(row)
        if over_torchserve and code != DEFAULT_STATUS:
            headers[STATUS] = f"{code} {phrase or ''}".rstrip()
        elif code >= 400:
            text = bytes(element).decode("utf-8", "replace")
            outputs.failures.setdefault(index, InferenceError(text, min(code, 599)))
        if headers:
            outputs.headers[index] = outputs.headers.get(index, {}) | headers

    def _typed(self, item: Any) -> BatchOutputs:
        context = self._context
        assert context is not None
        outputs = BatchOutputs(wire_tensors(item, self.source.name))
        headers = {str(name): str(v) for name, v in context.get_response_headers(0).items()}
        if headers:
            outputs.headers[0] = headers
        return outputs

    def _failed(
        self, error: BaseException, inputs: BatchInputs, over_torchserve: bool
    ) -> BatchOutputs:
        ids = ", ".join(quote(request.id) for request in inputs.requests[:8])
        log.error("the model %s failed; requests: %s", self.source.name, ids, exc_info=error)
        failure = answers.failure_of(error, over_torchserve, self.source.name)
        return BatchOutputs([], dict.fromkeys(range(len(inputs.requests)), failure))

    def _description(self) -> BatchOutputs:
        """Return the handler's own description of its model, as one JSON element."""
        describe = getattr(self._service, "describe_handle", None)
        try:
            element, _ = answers.torchserve_item(describe() if callable(describe) else None)
        except BaseException as error:
            log.error("the model %s cannot be described", self.source.name, exc_info=error)
            raise HandlerFailed(f"describe_handle failed with {type(error).__name__}") from error
        return BatchOutputs([Tensor(answers.OUTPUT, "BYTES", (1,), [element])])

    def close(self) -> None:
        """Let the handler go."""
        self._bare = self._enveloped = self._service = self._context = None


class _Chunks:
    """Where intermediate answers go: what `context.cl_socket` is to TorchServe.

    Args:
        context: The handler's context, which knows the ids of the rows.
        emit: Takes chunks for the requests of the batch; None where no client streams.
        owners: The request that owns each row.
        over_torchserve: Whether the requests came over TorchServe's routes.
    """

    def __init__(
        self, context: Context, emit: Emitter | None, owners: Sequence[int], over_torchserve: bool
    ) -> None:
        self._context = context
        self._emit = emit
        self._owners = owners
        self._over_torchserve = over_torchserve

    def send(self, items: Mapping[int, Any]) -> None:
        """Send one chunk to the request of each row that has an item."""
        if self._emit is None:
            return
        elements: list[Element] = [b""] * len(self._owners)
        headers: dict[int, dict[str, str]] = {}
        for row, item in items.items():
            if self._over_torchserve:
                elements[row], kind = answers.torchserve_item(item)
                headers[self._owners[row]] = {CONTENT_TYPE: kind}
            else:
                elements[row] = answers.wire_element(item)
        tensor = Tensor(answers.OUTPUT, "BYTES", (len(elements),), elements)
        only = frozenset(self._owners[row] for row in items)
        self._emit(BatchOutputs([tensor], headers=headers, only=only))

    def sendall(self, frame: bytes | bytearray) -> None:
        """Send what the real torchserve's `send_intermediate_predict_response` has framed."""
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
    """Return ids by which the requests of a batch can be told apart; clients choose their own."""
    seen: dict[str, None] = {}
    for given in ids:
        own = given if given and given not in seen else str(uuid.uuid4())
        seen[own] = None
    return list(seen)
