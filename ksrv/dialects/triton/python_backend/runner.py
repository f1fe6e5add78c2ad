"""Drives a model written for Triton's Python backend, as `ksrv.handlers.runner.Runner` drives ksrv's handlers.

The model gets Triton's module, requests and rules. The engine gives and gets the same batches as with any other
handler. As in Triton, such a model always runs in a separate process: here in a handler process. Its main thread loads
the model and calls `execute`, and the thread `ksrv-receive` receives batches.
"""

import importlib
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import numpy as np

from ksrv.dialects.foreign_runner import ForeignRunner
from ksrv.dialects.triton.declarations import TritonDeclarations
from ksrv.dialects.triton.handlers.sequence_model import control_value, dtype_of
from ksrv.dialects.triton.python_backend import utils_module
from ksrv.dialects.triton.python_backend.api.datatypes import (
    using_decoupled_model_transaction_policy,
)
from ksrv.dialects.triton.python_backend.api.model import RunningModel, enter
from ksrv.dialects.triton.python_backend.api.model_config import completed
from ksrv.dialects.triton.python_backend.api.request import (
    SEQUENCE_END,
    SEQUENCE_START,
    InferenceRequest,
    InferenceTrace,
)
from ksrv.dialects.triton.python_backend.api.tensor import Tensor
from ksrv.dialects.triton.python_backend.configuration import (
    completed_spec,
    full_configuration,
    kind_of,
)
from ksrv.dialects.triton.python_backend.execution import Done, Executions, client_error_of
from ksrv.errors import InvalidRequest, KsrvError, cut, without_paths
from ksrv.handlers.base_runner import SHOWN_IDS
from ksrv.handlers.devices.choice import choose_device
from ksrv.model.config import ModelConfig
from ksrv.model.spec import ModelSpec
from ksrv.request import ExecutorInputs, RequestPart, SequenceRequest

log = logging.getLogger("ksrv.dialects.triton.python_backend")

RESERVED = ("sequence_id", "sequence_start", "sequence_end")
"""Parameters of a request that the model sees as its correlation id and flags."""
TRACE_HEADERS = ("traceparent", "tracestate")
"""The headers that make the context of a request's trace."""


class PythonModelRunner(ForeignRunner):
    """One instance of a model. The model keeps the state of its sequences itself."""

    _executions: Executions | None = None

    # ---- loading ----------------------------------------------------------------------------

    def _load(self, config: ModelConfig) -> ModelSpec:
        name = self.source.name
        device = choose_device(config.device, self.source.first_device + self._instance)
        self._instance_name = f"{name}_0_{self._instance}"  # Triton's form of the name
        utils_module.install(name)
        running = self._running = RunningModel(name, self._emit, self.submit)
        enter(running)
        if self._threads and "OMP_NUM_THREADS" not in os.environ:
            os.environ["OMP_NUM_THREADS"] = str(self._threads)
        kind = self._import(config)
        declared = full_configuration(config.configuration or {}, device)
        configuration = completed(kind, json.dumps(declared))
        spec = completed_spec(config.spec(name, self.source.version), config, configuration)
        model = kind()
        if not callable(getattr(model, "execute", None)):
            raise TypeError(
                "TritonPythonModel has no method execute(requests); add one that returns an InferenceResponse for each"
                " request"
            )
        if callable(getattr(model, "initialize", None)):
            model.initialize(self._arguments(configuration, device))
        self._finalize = getattr(model, "finalize", None)
        self._outputs = [output.name for output in spec.outputs]
        self._counts_rows = spec.counts_rows
        decoupled = using_decoupled_model_transaction_policy(configuration)
        self._executions = Executions(
            model,
            self._instance_name,
            self._requests,
            decoupled=decoupled,
            describe=self._client_error_of,
        )
        running.may_call = True
        return replace(
            spec,
            device=device,
            calls_models=True,
            concurrency=config.concurrent_batches if decoupled else 1,
            may_stream=decoupled,
        )

    def _import(self, config: ModelConfig) -> Any:
        """Return the class of the model file, which is imported as VERSION.model, as in Triton.

        The model may import from its folder and from the folder of its version.
        """
        assert config.model is not None, "the repository has found the file"
        folder, root = self.source.folder, self.source.root
        for path in (str(root), str(folder)):
            if path not in sys.path:
                sys.path.append(path)
        self._hold_sources(root)
        stem = os.path.splitext(os.path.basename(config.model))[0]
        module = importlib.import_module(f"{folder.name}.{stem}" if folder != root else stem)
        kind = getattr(module, "TritonPythonModel", None)
        if kind is None:
            raise AttributeError(f"{os.path.basename(config.model)} has no class TritonPythonModel")
        return kind

    def _arguments(self, configuration: dict[str, Any], device: str) -> dict[str, str]:
        """Return the argument of `initialize`."""
        _, _, number = device.partition(":")
        name = self.source.name
        return {
            "model_config": json.dumps(configuration),
            "model_instance_kind": kind_of(device),
            "model_instance_name": self._instance_name,
            "model_instance_device_id": number or "0",
            "model_repository": str(self.source.root),
            "model_version": self.source.version or "1",
            "model_name": name,
        }

    # ---- batches ----------------------------------------------------------------------------

    def serve(self, receive: Callable[[], None]) -> None:
        """Execute batches on this thread, which has loaded the model, while another thread receives them.

        Args:
            receive: Begins the batches that arrive; returns after the last.

        Raises:
            ChannelError: The data that arrived are not a message.
        """
        executions = self._executions
        assert executions is not None, "a model serves once it is loaded"
        received: Future[None] = Future()

        def receive_all() -> None:
            try:
                receive()
            except BaseException as error:  # noqa: BLE001  `received.result()` raises it
                received.set_exception(error)
            else:
                received.set_result(None)
            finally:
                executions.end()

        threading.Thread(target=receive_all, name="ksrv-receive", daemon=True).start()
        executions.serve()
        received.result()

    def begin(self, inputs: ExecutorInputs, done: Done) -> Callable[[], None]:
        """Queue a batch for `execute`; see `ksrv.handlers.runner.Runner.begin`."""
        if self._executions is None:
            raise self._not_loaded()
        return self._executions.begin(inputs, done)

    def _requests(
        self, inputs: ExecutorInputs
    ) -> tuple[dict[int, InferenceRequest], dict[int, KsrvError]]:
        made: dict[int, InferenceRequest] = {}
        refused: dict[int, KsrvError] = {}
        for index, request in enumerate(inputs.requests):
            try:
                made[index] = self._request(inputs, request)
            except InvalidRequest as error:  # fails only this request of the batch
                refused[index] = error
        return made, refused

    def _request(self, inputs: ExecutorInputs, request: RequestPart) -> InferenceRequest:
        part = request.slice
        tensors = [
            Tensor.of(tensor.rows(part.start, part.stop) if self._counts_rows else tensor)
            for tensor in inputs.tensors.values()
        ]
        sequence = request.sequence
        parameters = {
            name: value for name, value in request.parameters.items() if name not in RESERVED
        }
        flags = 0
        if sequence is not None:
            flags = SEQUENCE_START * sequence.start | SEQUENCE_END * sequence.end
            tensors += self._controls(sequence)
        timeout_us = 0
        if request.deadline_ns is not None:
            timeout_us = max(1, (request.deadline_ns - time.monotonic_ns()) // 1000)
        return InferenceRequest(
            request_id=request.id,
            correlation_id=_correlation_id(request),
            inputs=tensors,
            requested_output_names=list(request.outputs) or self._outputs,
            model_name=self.source.name,
            model_version=int(self.source.version or 1),
            flags=flags,
            timeout=timeout_us,
            trace=_trace(request),
            parameters=parameters,
        )

    def _controls(self, sequence: SequenceRequest) -> list[Tensor]:
        """Return the control inputs for a request of a sequence."""
        config = self.source.config
        controls = TritonDeclarations.of(config).controls if config is not None else ()
        found = []
        for control in controls:
            shape = (1, 1) if self._counts_rows else (1,)
            array = np.full(shape, control_value(control, sequence), dtype_of(control.datatype))
            found.append(Tensor(control.name, array))
        return found

    def _client_error_of(self, error: BaseException, inputs: ExecutorInputs) -> KsrvError:
        """Log the exception of a batch, and return the error for its clients, without paths of the server."""
        ids = ", ".join(request.id or "-" for request in inputs.requests[:SHOWN_IDS])
        log.error("the model %s failed; requests: %s", self.source.name, ids, exc_info=error)
        failure = client_error_of(error, self.source.name)
        failure.message = cut(without_paths(failure.message, self.source.folder, self.source.root))
        return failure

    def close(self) -> None:
        """Finalize the model. Called on the thread that has loaded it."""
        self._executions = None
        self._running.may_call = False
        if self._finalize is None:
            return
        finalize, self._finalize = self._finalize, None
        try:
            finalize()
        except BaseException:
            log.exception("the model %s: finalize failed", self.source.name)


def _correlation_id(request: RequestPart) -> int | str:
    given = request.parameters.get("sequence_id", 0)
    if request.sequence is not None:
        given = request.sequence.id
    return given if isinstance(given, str) else int(given)


def _trace(request: RequestPart) -> InferenceTrace:
    found = {name: request.headers[name] for name in TRACE_HEADERS if name in request.headers}
    return InferenceTrace(json.dumps(found) if found else "")
