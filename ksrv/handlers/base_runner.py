"""The base of `Runner`: makes the batch that a handler sees, and reads the handler's results and errors.

`StageRunner`, the base class here, is the compiled loop over the stages. `Runner` adds loading; it sets `handler` and
`context`, which `StageRunner` declares.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from ksrv._native.batch.stages import StageRunner
from ksrv._native.memory.buffer_pool import Block
from ksrv.errors import (
    Cancelled,
    DeadlineExceeded,
    DeviceLost,
    FileFailed,
    HandlerFailed,
    InferenceError,
    KsrvError,
    ModelFailed,
    ProgramError,
    StreamNeeded,
    quote,
    without_paths,
)
from ksrv.handlers.batch import Batch, excess
from ksrv.handlers.devices.device import Device, torch_tensor
from ksrv.handlers.devices.lost import note_lost
from ksrv.handlers.diagnostics.debugging import add_traceback
from ksrv.handlers.imports.folder_modules import error_with_location
from ksrv.handlers.outputs import OutputConverter
from ksrv.handlers.sequences import SequenceStates
from ksrv.handlers.streaming.chunk_forms import with_blanks
from ksrv.model.config import ModelSource
from ksrv.model.fault import Fault
from ksrv.model.spec import ModelSpec
from ksrv.request import WARM_UP, Array, ExecutorInputs, ExecutorOutputs, RequestPart, Tensor
from ksrv.torch_interop import imported_torch

log = logging.getLogger("ksrv.handlers")

SHOWN_IDS = 8
"""How many request ids a log line names."""
PROGRAM_ERRORS = (TypeError, NameError, ImportError, NotImplementedError)
"""Exceptions that do not depend on the values of the inputs, so that no request can succeed."""

Read = Callable[[Any, int, bool, Mapping[str, Tensor]], list[Tensor]]
"""Returns the tensors of a result. Takes the result, its number of rows, whether it is an explanation, and the
inputs."""


class BaseRunner(StageRunner):
    """The batches of one handler.

    Attributes:
        on_device_lost: Called with the name of a device that can no longer be used in this process.
        device: The interface to the handler's device.
        sequences: The states of the sequences that the handler serves.
        layouts: The layout in which the handler sees each image input.
        optional_inputs: The names of the inputs that a request may leave out.
        serves_sequences: Whether the model serves sequences.
        shares_loop: Whether many batches run on one event loop.
        runs_file: Whether a model file gets the inputs without code of the handler before it.
    """

    def __init__(self, source: ModelSource) -> None:
        self.source = source
        self.outputs = OutputConverter(ModelSpec(source.name))
        self.device = Device("cpu")
        self.on_device_lost: Callable[[str], None] = note_lost
        self.sequences = SequenceStates()
        self.layouts: dict[str, str] = {}
        self.optional_inputs: tuple[str, ...] = ()
        self.serves_sequences = False
        self.shares_loop = False
        self.runs_file = False
        # The last `handler.device` that was found equal to `device`.
        self._handlers_device: Any = None

    def make_batch(self, inputs: ExecutorInputs) -> Batch:
        """Return a batch as handlers see it.

        Args:
            inputs: The batch as the engine made it.
        """
        batch = Batch(inputs, self.layouts, self._put, self._send, self.optional_inputs)
        if self.serves_sequences:
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
        """Return memory for the inputs of a batch.

        Args:
            nbytes: How many bytes.

        Raises:
            MemoryError: No memory is left.
        """
        return self.device.lease(nbytes)

    def _send(
        self, inputs: ExecutorInputs, result: Any, headers: dict[int, dict[str, str]]
    ) -> bool:
        """Send an intermediate answer, see `Batch.send`; return False if no client takes intermediate answers."""
        if inputs.emit is None:
            return False
        outputs = self.read_chunk(result, inputs)
        for failure in outputs.failures.values():
            raise failure
        outputs.headers.update(headers)
        sender: Any = inputs.emit
        if self.shares_loop and _on_event_loop():
            sender.offer(outputs)  # waiting for one slow client would hold up all other batches
        else:
            sender(outputs)
        return True

    def read_outputs(self, result: Any, inputs: ExecutorInputs) -> ExecutorOutputs:
        """Return the answer to a batch, read from the handler's result.

        Raises:
            KsrvError: The result does not fit the batch.
        """
        return self._read(self.outputs.read, result, inputs)

    def read_chunk(
        self, chunk: Any, inputs: ExecutorInputs, absent: Collection[int] = ()
    ) -> ExecutorOutputs:
        """Return an intermediate answer, read from a value that the handler yielded or sent.

        Args:
            absent: The rows that have no value in the chunk.

        Raises:
            KsrvError: The chunk does not fit the batch.
        """
        return self._read(self.outputs.read_chunk, chunk, inputs, absent)

    def _read(
        self, read: Read, result: Any, inputs: ExecutorInputs, absent: Collection[int] = ()
    ) -> ExecutorOutputs:
        try:
            given = with_blanks(result, absent)
            made = ExecutorOutputs(read(given, inputs.rows, inputs.explain, inputs.tensors))
            if absent:
                made.only = frozenset(
                    index
                    for index, part in enumerate(inputs.requests)
                    if not all(row in absent for row in range(part.slice.start, part.slice.stop))
                )
        except KsrvError as error:
            made = self._read_by_request(result, inputs, absent, error)
        self.device.finish()  # `read` may have queued copies from the device
        return made

    def _read_by_request(
        self, result: Any, inputs: ExecutorInputs, absent: Collection[int], error: KsrvError
    ) -> ExecutorOutputs:
        """Read a result for each request separately.

        This is tried if reading all rows together failed. The rows of one request may have other sizes than the rows of
        another request, and a wrong row must not fail the other requests.

        Args:
            error: Why the rows cannot be read together; raised if the rows of no request can be read.
        """
        found = self.outputs.by_request(result, inputs) if len(inputs.requests) > 1 else None
        if found is None:
            raise error
        parts: dict[int, tuple[int, int]] = {}
        made = ExecutorOutputs([], parts=parts)
        for index, (request, values) in enumerate(zip(inputs.requests, found, strict=True)):
            rows = range(request.slice.start, request.slice.stop)
            gone = {row - rows.start for row in rows if row in absent}
            if rows and len(gone) == len(rows):
                continue
            own = {name: with_blanks(value, gone) for name, value in values.items()}
            try:
                tensors = self.outputs.read(own, len(rows), inputs.explain, inputs.tensors)
            except KsrvError as failure:
                made.failures[index] = failure
                continue
            first = len(made.tensors)
            made.tensors += tensors
            parts[index] = (first, first + len(tensors))
        if not parts:
            raise error
        if absent or made.failures:
            made.only = frozenset(parts)
        for cause in made.failures.values():
            # Only to log it: `made` has the error already.
            self.failure_of(cause, "outputs", inputs)
        return made

    @contextmanager
    def inference_mode(self) -> Iterator[None]:
        """Run this thread on the handler's device and in torch's inference mode."""
        with self.device.running(), inference_mode():
            yield

    def failure_of(self, error: BaseException, stage: str, inputs: ExecutorInputs) -> KsrvError:
        """Return the error that clients get for an error of the handler, and log its traceback.

        Refusals and deadlines of the models that it calls are not logged here, because they are logged for the called
        model. A stream that was not requested as a stream is not logged either.
        """
        if isinstance(error, InferenceError):
            return excess(error.headers) or error
        if isinstance(error, (Cancelled, DeadlineExceeded, StreamNeeded)):
            return error
        if isinstance(error, KsrvError) and error.reason:
            return error  # the refusal of a model that the handler called
        requests = inputs.requests[:SHOWN_IDS]
        more = len(inputs.requests) - len(requests)
        shown = ", ".join(map(_shown_ids, requests)) + (f" and {more} more" if more else "")
        fields = {"request_ids": [request.headers.get("x-request-id", "") for request in requests]}
        text = "%s failed in %s with %s; requests: %s"
        said = self._said(error)
        log.error(text, self._shown(), stage, said, shown, exc_info=error, extra=fields)
        failure = error if isinstance(error, KsrvError) else self._answer_to(error, stage, inputs)
        failure.was_logged = True
        return failure

    def _answer_to(self, error: BaseException, stage: str, inputs: ExecutorInputs) -> KsrvError:
        """Return the error that clients get for an exception that is not a KsrvError."""
        of_device = self.device.failure_of(error)
        if isinstance(of_device, DeviceLost):
            self.on_device_lost(self.device.name)
        if of_device is not None:
            return of_device
        if isinstance(error, Fault):
            text = without_paths(str(error), self.source.folder, self.source.root)
            return ModelFailed(f"{self._shown()} cannot serve: {text}")
        kind = ProgramError if isinstance(error, PROGRAM_ERRORS) else HandlerFailed
        if stage == "inference" and self.runs_file:
            kind = FileFailed
        # Clients get the type of the error only. A warm-up has no client, so its text may have the details.
        said = type(error).__name__
        if _is_warm_up(inputs):
            said = self._said(error)
        elif not self.source.debug:
            said += "; the server's log has its traceback"
        failure = kind(f"the stage {stage} of {self._shown()} failed with {said}")
        if self.source.debug:
            add_traceback(failure, error, inputs, self.source.folder, self.source.root)
        return failure

    def _said(self, error: BaseException) -> str:
        """Return an error in one line: "KeyError: 'no such key' (handler.py, line 3)"."""
        return " ".join(error_with_location(self.source.root, error).split())

    def _shown(self) -> str:
        version = f" version {self.source.version}" if self.source.version else ""
        return f"the model {self.source.name}{version}"


def _is_warm_up(inputs: ExecutorInputs) -> bool:
    """Whether the server itself made all requests of a batch. A client's request also has the header x-request-id."""
    parts = inputs.requests
    return all(part.id == WARM_UP and "x-request-id" not in part.headers for part in parts)


def _shown_ids(request: RequestPart) -> str:
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
    """Return torch's inference mode; an empty context if torch is not imported."""
    torch = imported_torch()
    return nullcontext() if torch is None else torch.inference_mode()
