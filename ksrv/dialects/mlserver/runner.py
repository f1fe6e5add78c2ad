"""Drives a runtime of MLServer, as `ksrv.handlers.runner.Runner` drives ksrv's handlers."""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from importlib import import_module
from operator import attrgetter
from typing import Any

from ksrv import errors
from ksrv.dialects.foreign_runner import ConcurrentForeignRunner, find_class
from ksrv.dialects.mlflow.runner import MlflowRunner
from ksrv.dialects.mlflow.tables import model_input, output_tensors
from ksrv.dialects.mlserver import packages
from ksrv.dialects.mlserver.api import model as own_model
from ksrv.dialects.mlserver.api.codecs import NumpyRequestCodec
from ksrv.dialects.mlserver.messages import declared, request_message, response_tensors
from ksrv.dialects.mlserver.model_settings import FORMAT, SETTINGS_NAME
from ksrv.handlers.diagnostics.metrics import Metrics
from ksrv.model.config import ModelConfig
from ksrv.model.spec import ModelSpec
from ksrv.request import ExecutorInputs, ExecutorOutputs

_FACTS = attrgetter("parameters", "input_parameters", "outputs", "output_parameters")
"""The parts of a request that a joined request has once."""


class MLServerRunner(ConcurrentForeignRunner):
    """One instance of a runtime. Its coroutines run on one event loop, as in MLServer."""

    _model: Any = None

    def _load(self, config: ModelConfig) -> ModelSpec:
        folder, given = self.source.folder, config.dialect[FORMAT]
        packages.install(self.source.name)
        sys.path.insert(0, str(folder))
        self._hold_sources(folder)
        runtime = find_class(given["implementation"], folder)
        # ksrv's runtimes may run beside an installed mlserver, which comes without MLServer's runtimes.
        is_own = issubclass(runtime, own_model.MLModel)
        home = f"{packages.HERE}.api" if is_own else "mlserver"
        self._types, module = import_module(f"{home}.types"), import_module(f"{home}.model")
        made = module.ModelSettings(**given)
        made._source = str(folder / SETTINGS_NAME)
        if not is_own:  # for mlserver.log; kept, because its end resets the variables
            self._context = import_module("mlserver.context").model_context(made)
            self._context.__enter__()
        own_model.METRICS.set(Metrics(self.source.name, self.source.version, self._emit))
        model = runtime(made)
        if not self.wait(model.load()):
            raise ValueError(f"load of {given['implementation']} did not return True")
        model.ready = True
        self._model, self._predicts = model, runtime.predict is not module.MLModel.predict
        return replace(
            config.spec(self.source.name, self.source.version),
            platform=given["platform"] or given["implementation"].partition(".")[0],
            device="cpu",
            inputs=declared(model.inputs),
            outputs=declared(model.outputs),
            accepts_any_inputs=True,
            concurrency=config.concurrent_batches,
            may_stream=runtime.predict_stream is not module.MLModel.predict_stream,
        )

    async def answer(self, inputs: ExecutorInputs) -> ExecutorOutputs:
        """Return the answer of a batch, or send it in parts if the clients stream."""
        everyone = range(len(inputs.requests))
        if inputs.emit is not None:
            await asyncio.gather(*(self._stream(index, inputs) for index in everyone))
            inputs.emit(ExecutorOutputs([], only=frozenset()))  # marks the answers as streamed
            return ExecutorOutputs([])
        if not self._predicts:
            text = f"the model {self.source.name} answers in parts only (predict_stream)"
            raise errors.StreamNeeded(f"{text}; call /infer_stream or ModelStreamInfer")
        outputs = ExecutorOutputs([], parts={})
        # One call of `predict` answers all requests with the same parameters.
        facts = {repr(_FACTS(request)) for request in inputs.requests}
        for indices in [everyone] if len(facts) == 1 else [[index] for index in everyone]:
            try:
                response = await self._model.predict(self._message(indices, inputs))
                self._add(response, indices, inputs, outputs)
            except Exception as error:  # noqa: BLE001  a runtime may raise anything
                outputs.failures.update(dict.fromkeys(indices, self._failure(error, inputs)))
        return outputs

    def _message(self, indices: Sequence[int], inputs: ExecutorInputs) -> Any:
        """Return the request for the runtime: of one request, or of all requests of the batch."""
        first, last = inputs.requests[indices[0]], inputs.requests[indices[-1]]
        joins = self.source.config is not None and self.source.config.batching is not None
        rows = slice(first.slice.start, last.slice.stop) if joins else None
        return request_message(inputs, first, rows, self._types)

    def _add(self, response: Any, indices: Sequence[int], inputs: ExecutorInputs, out: Any) -> None:
        """Add the answers to some requests."""
        tensors, parameters, headers = response_tensors(response)
        joined = len(indices) > 1
        for tensor in tensors:
            if joined and tensor.shape[:1] != (inputs.rows,):
                rows = f"predict of the model {self.source.name} got {inputs.rows} rows, and its output {tensor.name!r}"
                remedy = "return a row for each, or remove max_batch_size"
                raise errors.HandlerFailed(f"{rows} has the shape {list(tensor.shape)}; {remedy}")
        for index in indices:
            begin, part = len(out.tensors), inputs.requests[index].slice
            out.tensors += [t.rows(part.start, part.stop) if joined else t for t in tensors]
            out.parts[index] = (begin, len(out.tensors))
            out.parameters[index], out.headers[index] = parameters, headers

    async def _stream(self, index: int, inputs: ExecutorInputs) -> None:
        """Send the parts of an answer as the runtime yields them."""

        async def messages() -> AsyncIterator[Any]:
            yield self._message([index], inputs)

        end = ExecutorOutputs([], only=frozenset((index,)))
        try:
            async for response in self._model.predict_stream(messages()):
                tensors, parameters, _ = response_tensors(response)
                if tensors:  # without tensors a part would end the answer
                    part = ExecutorOutputs(tensors, only=end.only, parts={index: (0, len(tensors))})
                    part.parameters[index] = parameters
                    await self.send(part, inputs)
        except Exception as error:  # noqa: BLE001  a runtime may raise anything
            end.failures[index] = self._failure(error, inputs)
        inputs.emit(end)

    def _failure(self, error: Exception, inputs: ExecutorInputs) -> errors.KsrvError:
        """Return the error for the client: the text of an error with a status, else the type of the error."""
        status = getattr(error, "status_code", None)
        if isinstance(status, int) and 400 <= status <= 599:
            text = errors.without_paths(str(error), self.source.folder, self.source.root)
            return errors.InferenceError(text, status)
        return self.failure_of(error, "predict", inputs)

    def close(self) -> None:
        """Unload the model, and end its event loop."""
        model, self._model = self._model, None
        try:
            if model is not None:
                self.wait(model.unload())
        except Exception:  # noqa: BLE001  logged
            own_model.logger.exception("%s: unload failed", self._shown())
        super().close()


class MLflowRuntime(MlflowRunner):
    """A model of MLflow that answers in MLServer's forms. MLflow converts the inputs to its signature."""

    def _load(self, config: ModelConfig) -> ModelSpec:
        self._codecs = own_model.MLModel(own_model.ModelSettings(**config.dialect[FORMAT]))
        return replace(super()._load(config), accepts_any_inputs=True)

    def _predict_all(self, inputs: ExecutorInputs) -> ExecutorOutputs:
        """Answer a request over KServe v2. Requests are not joined."""
        data = model_input(inputs.tensors, self._config.inputs, self._schema)
        params = self._params_of(inputs.requests[0].parameters)
        found = self._predictions(data, params, inputs)
        if isinstance(found, dict):
            return ExecutorOutputs(output_tensors(found, ()))
        response = self._codecs.encode_response(found, NumpyRequestCodec)
        answer, parameters, _ = response_tensors(response)
        return ExecutorOutputs(answer, parts={0: (0, len(answer))}, parameters={0: parameters})
