"""Drives a handler written for TorchServe, as `ksrv.handlers.runner.Runner` drives ksrv's own.

The handler sees the context, the rows and the return rule that it was written for; the engine sees
the same batches in and out as from any other handler.
"""

import logging
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from ksrv.errors import HandlerFailed, InferenceError, KsrvError
from ksrv.handlers.device import choose_device
from ksrv.handlers.metrics import Emit, discard
from ksrv.handlers.runner import LoadFailed
from ksrv.request import BatchInputs, BatchOutputs, Element, Tensor
from ksrv.source import ModelSource
from ksrv.spec import ModelSpec, TensorSpec
from ksrv.torchserve import answers, rows, surface
from ksrv.torchserve.context import DEFAULT_STATUS, Context, RequestProcessor
from ksrv.torchserve.entry import Entry, find_entry
from ksrv.torchserve.envelopes import ENVELOPES
from ksrv.torchserve.metrics import Metrics

log = logging.getLogger("ksrv.torchserve")

STATUS = ":status"
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
        self._entry: Entry | None = None
        self._service: Any = None
        self._context: Context | None = None

    def load(self) -> ModelSpec:
        """Import the handler and let it initialize.

        Raises:
            LoadFailed: The handler, its model or its settings are at fault; the cause is chained.
        """
        config = self.source.config
        if config is None or config.torchserve is None or self.source.error:
            raise LoadFailed(self.source.error or f"{self.source.folder} is no TorchServe archive")
        settings = config.torchserve
        try:
            surface.install(self.source.name)
            if str(self.source.folder) not in sys.path:
                sys.path.insert(0, str(self.source.folder))
            if self._threads and config.model and not config.model.endswith(".onnx"):
                import torch

                torch.set_num_threads(self._threads)
            self._context = self._make_context()
            entry, self._service = find_entry(
                settings["manifest"]["model"]["handler"], self.source.folder, self._context
            )
            self._entry = self._behind_envelope(entry)
        except (Exception, SystemExit) as error:
            raise LoadFailed(
                f"the model {self.source.name} cannot be loaded: {type(error).__name__}: {error}"
            ) from error
        return self._spec()

    def _make_context(self) -> Context:
        config = self.source.config
        assert config is not None
        assert config.torchserve is not None
        device = choose_device(config.device, self._instance)
        kind, _, index = device.partition(":")
        return Context(
            model_name=self.source.name,
            model_dir=str(self.source.folder),
            manifest=config.torchserve["manifest"],
            batch_size=config.batching.max_batch_size if config.batching else 1,
            gpu=int(index or 0) if kind != "cpu" else None,
            mms_version=surface.VERSION,
            metrics=Metrics(self.source.name, self._emit),
            model_yaml_config=config.torchserve.get("config") or {},
        )

    def _behind_envelope(self, entry: Entry) -> Entry:
        config = self.source.config
        if config is None or not config.envelope:
            return entry
        try:
            envelope = ENVELOPES[config.envelope]
        except KeyError:
            known = ", ".join(ENVELOPES)
            raise ValueError(f"envelope is one of {known}, not {config.envelope!r}") from None
        return envelope(entry).handle

    def _spec(self) -> ModelSpec:
        from dataclasses import replace

        config = self.source.config
        assert config is not None
        spec = config.spec(self.source.name, self.source.version)
        return replace(
            spec,
            platform="torchserve",
            inputs=spec.inputs or (UNDECLARED_INPUT,),
            outputs=spec.outputs or (UNDECLARED_OUTPUT,),
            open_inputs=not spec.inputs,
        )

    def run(self, inputs: BatchInputs) -> BatchOutputs:
        """Run one batch; every item that the handler returns belongs to one row.

        Raises:
            KsrvError: The whole batch failed.
        """
        assert self._entry is not None
        assert self._context is not None
        owned = rows.batch_rows(inputs)
        self._begin(inputs, [index for index, _ in owned])
        start = time.perf_counter_ns()
        try:
            returned = self._entry([row for _, row in owned], self._context)
            items = answers.checked_items(returned, len(owned))
        except (Exception, SystemExit) as error:
            if isinstance(error, SystemExit):
                raise
            return self._failed(error, inputs)
        taken = time.perf_counter_ns() - start
        self._context.metrics.add_time("PredictionTime", round(taken / 1e6, 2))  # type: ignore[union-attr]
        outputs = self._answer(items, [index for index, _ in owned], inputs)
        outputs.timings = {"inference": taken}
        return outputs

    def _begin(self, inputs: BatchInputs, owners: list[int]) -> None:
        context = self._context
        assert context is not None
        requests = inputs.requests
        context.request_ids = {row: requests[index].id for row, index in enumerate(owners)}
        context.request_processor = [
            RequestProcessor(rows.request_headers(requests[index], inputs.tensors, inputs.explain))
            for index in owners
        ]
        if context.metrics is not None:
            context.metrics.request_ids = context.request_ids
        context.cl_socket = None if inputs.emit is None else _Chunks(inputs.emit)

    def _answer(self, items: list[Any], owners: list[int], inputs: BatchInputs) -> BatchOutputs:
        context = self._context
        assert context is not None
        elements: list[Element] = []
        outputs = BatchOutputs([])
        for row, (index, item) in enumerate(zip(owners, items, strict=True)):
            over_torchserve = rows.is_torchserve(inputs.requests[index])
            try:
                make = answers.torchserve_bytes if over_torchserve else answers.wire_element
                element = make(item)
            except answers.AnswerError as error:
                outputs.failures[index] = answers.failure_of(
                    error, over_torchserve, self.source.name
                )
                element = b""
            elements.append(element)
            self._apply_status(row, index, element, over_torchserve, outputs)
        outputs.tensors = [Tensor(answers.OUTPUT, "BYTES", (len(elements),), elements)]
        return outputs

    def _apply_status(
        self, row: int, index: int, element: Element, over_torchserve: bool, outputs: BatchOutputs
    ) -> None:
        context = self._context
        assert context is not None
        headers = {name: str(value) for name, value in context.get_response_headers(row).items()}
        code, phrase = context.get_response_status(row)
        if over_torchserve and code != DEFAULT_STATUS:
            headers[STATUS] = f"{code} {phrase or ''}".rstrip()
        elif code >= 400:
            text = bytes(element).decode("utf-8", "replace")
            outputs.failures.setdefault(index, InferenceError(text, min(code, 599)))
        if headers:
            outputs.headers[index] = headers

    def _failed(self, error: Exception, inputs: BatchInputs) -> BatchOutputs:
        ids = ", ".join(request.id or "-" for request in inputs.requests[:8])
        log.error("the model %s failed; requests: %s", self.source.name, ids, exc_info=error)
        failures: dict[int, KsrvError] = {
            index: answers.failure_of(error, rows.is_torchserve(request), self.source.name)
            for index, request in enumerate(inputs.requests)
        }
        return BatchOutputs([], failures)

    def close(self) -> None:
        """Let the handler go."""
        self._entry = self._service = self._context = None

    def describe(self) -> Any:
        """Return the handler's own description, or None.

        Raises:
            HandlerFailed: Its `describe_handle` raised.
        """
        describe = getattr(self._service, "describe_handle", None)
        try:
            return describe() if callable(describe) else None
        except Exception as error:
            raise HandlerFailed(f"describe_handle failed with {type(error).__name__}") from error


class _Chunks:
    """Where intermediate answers go: what `context.cl_socket` is to TorchServe."""

    def __init__(self, emit: Callable[[BatchOutputs], None]) -> None:
        self._emit = emit

    def send(self, chunks: Sequence[bytes]) -> None:
        tensor = Tensor(answers.OUTPUT, "BYTES", (len(chunks),), list(chunks))
        self._emit(BatchOutputs([tensor]))
