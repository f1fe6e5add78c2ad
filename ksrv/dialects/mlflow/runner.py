"""Runs a model of MLflow in a handler process, with MLflow in the model's interpreter.

A request over KServe v2 becomes the argument of `predict` (`tables.py`). The body of a request to /invocations is read
and answered by MLflow's scoring functions themselves, so that every form of it means what it means in MLflow.
"""

import inspect
import json
import logging
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from ksrv.dialects.foreign_runner import ForeignRunner
from ksrv.dialects.mlflow.calls import BODY, PLATFORM, SCORING, VERSION, ScoringAnswer
from ksrv.dialects.mlflow.environment import advice, differences
from ksrv.dialects.mlflow.tables import check_width, model_input, output_tensors
from ksrv.errors import (
    HandlerFailed,
    InferenceError,
    InvalidRequest,
    KsrvError,
    NotImplementedByKsrv,
    cut,
    without_paths,
)
from ksrv.handlers.base_runner import SHOWN_IDS
from ksrv.loaders.loaded import ModelLoadError
from ksrv.model.config import ModelConfig
from ksrv.model.spec import ModelSpec
from ksrv.request import (
    Element,
    ExecutorInputs,
    ExecutorOutputs,
    Parameters,
    RequestPart,
    Tensor,
)

log = logging.getLogger("ksrv.dialects.mlflow")

OFFLINE = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "HF_HUB_OFFLINE": "1",
    "_MLFLOW_IS_IN_SERVING_ENVIRONMENT": "true",  # as MLflow's server sets it
}
"""Environment variables for MLflow, unless `env:` or the server's environment sets them. Nothing is downloaded."""
OF_THE_FILE = (".ubj", ".json", ".txt", ".cbm", ".skops", ".onnx")
"""Suffixes of model files that ksrv serves without MLflow."""
BAD_REQUEST = 400


class MlflowRunner(ForeignRunner):
    """One instance of a model; the main thread of its handler process runs it."""

    _model: Any = None

    def _load(self, config: ModelConfig) -> ModelSpec:
        for name, value in OFFLINE.items():
            os.environ.setdefault(name, value)
        if self._threads:
            os.environ.setdefault("OMP_NUM_THREADS", str(self._threads))
        folder = self.source.folder
        self._hold_sources(self.source.root)
        try:
            import mlflow.pyfunc
            from mlflow.pyfunc import scoring_server
        except ImportError as error:
            raise ModelLoadError(_without_mlflow(folder, error)) from error
        found = differences(folder)
        differs = f"{sys.executable} differs from the files of the model: {', '.join(found)}"
        try:
            self._model = mlflow.pyfunc.load_model(str(folder), suppress_warnings=True)
        except Exception as error:
            remedy = f"; {differs}; {advice(folder)}" if found else ""
            raise ModelLoadError(f"{type(error).__name__}: {error}{remedy}") from error
        if found:
            log.warning(
                "%s: %s; if its answers are wrong, %s", self._shown(), differs, advice(folder)
            )
        self._scoring, self._config = scoring_server, config
        self._takes_params = "params" in inspect.signature(self._model.predict).parameters
        self._schema = self._model.metadata.get_input_schema()
        params = getattr(self._model.metadata, "get_params_schema", lambda: None)()
        self._params = {param.name: param for param in params.params} if params else {}
        spec = config.spec(self.source.name, self.source.version)
        return replace(
            spec,
            platform=PLATFORM,
            parameters={**spec.parameters, VERSION: mlflow.__version__},
            accepts_any_inputs=not spec.inputs,
            device="cpu",
        )

    def _run(self, inputs: ExecutorInputs) -> ExecutorOutputs:
        if self._model is None:
            raise self._not_loaded()
        if inputs.explain:
            raise NotImplementedByKsrv(f"{self._shown()} predicts only: MLflow has no explanations")
        began = perf_counter_ns()
        scores = inputs.requests[0].dialect == SCORING
        outputs = self._score_all(inputs) if scores else self._predict_all(inputs)
        outputs.timings = {"inference": perf_counter_ns() - began}
        return outputs

    # ---- KServe v2 --------------------------------------------------------------------------

    def _predict_all(self, inputs: ExecutorInputs) -> ExecutorOutputs:
        """Answer requests over KServe v2: in one call if all have the same parameters, else one after the other."""
        requests = inputs.requests
        params = [self._params_of(request.parameters) for request in requests]
        if all(one == params[0] for one in params):
            tensors = self._predict(inputs.tensors, params[0], inputs)
            counted = all(tensor.shape[:1] == (inputs.rows,) for tensor in tensors)
            if len(requests) > 1 and not counted:
                raise HandlerFailed(
                    f"{self._shown()} does not answer a row for each row, so its requests cannot be joined: leave out "
                    f"batching: in model.yaml"
                )
            parts = None if counted else {0: (0, len(tensors))}
            return ExecutorOutputs(tensors, parts=parts)
        outputs = ExecutorOutputs([], parts={})
        assert outputs.parts is not None
        for index, request in enumerate(requests):
            rows = request.slice
            given = {
                name: tensor.rows(rows.start, rows.stop) for name, tensor in inputs.tensors.items()
            }
            first = len(outputs.tensors)
            try:
                outputs.tensors += self._predict(given, params[index], inputs)
            except KsrvError as error:
                outputs.failures[index] = error
            outputs.parts[index] = (first, len(outputs.tensors))
        return outputs

    def _predict(
        self, tensors: Mapping[str, Tensor], params: dict[str, Any], inputs: ExecutorInputs
    ) -> list[Tensor]:
        """Return the outputs of one call of the model."""
        data = model_input(tensors, self._config.inputs, self._schema)
        return output_tensors(self._predictions(data, params, inputs), self._config.outputs)

    def _predictions(self, data: Any, params: dict[str, Any], inputs: ExecutorInputs) -> Any:
        """Return what `predict` of the model returns for an argument."""
        predict = self._model.predict
        if self._takes_params and params:
            predict = partial(predict, params=params)
        try:
            return predict(data)
        except Exception as error:  # noqa: BLE001  a model may raise anything
            raise self._failure(error, inputs) from None

    def _params_of(self, parameters: Parameters) -> dict[str, Any]:
        """Return the parameters of a request that the signature declares. Lists and objects arrive as JSON texts."""
        found: dict[str, Any] = {}
        for name, param in self._params.items():
            if name not in parameters:
                continue
            value: Any = parameters[name]
            if isinstance(value, str) and (param.shape or not hasattr(param.dtype, "to_numpy")):
                try:
                    value = json.loads(value)
                except (ValueError, RecursionError) as error:
                    raise InvalidRequest(
                        f"the parameter {name!r} expects a list or an object as JSON text: {error}"
                    ) from None
            found[name] = value
        return found

    def _failure(self, error: Exception, inputs: ExecutorInputs) -> KsrvError:
        """Log the error of `predict`, and return the error for the clients: 400 as in MLflow, because its models refuse
        inputs by exceptions.
        """
        ids = ", ".join(request.id or "-" for request in inputs.requests[:SHOWN_IDS])
        log.warning("%s failed; requests: %s", self._shown(), ids, exc_info=error)
        return InferenceError(
            f"{self._shown()} cannot predict: {self._cause(error)}", _status(error)
        )

    def _cause(self, error: BaseException) -> str:
        """Return the text of an error for clients, without paths of the server."""
        text = getattr(error, "message", None) or f"{type(error).__name__}: {error}"
        return cut(without_paths(" ".join(str(text).split()), self.source.folder, self.source.root))

    # ---- MLflow's routes --------------------------------------------------------------------

    def _score_all(self, inputs: ExecutorInputs) -> ExecutorOutputs:
        """Answer requests to /invocations one after the other."""
        outputs = ExecutorOutputs([])
        elements: list[Element] = []
        for index, request in enumerate(inputs.requests):
            body = bytes(inputs.tensors[BODY].data[request.slice.start])
            text, outputs.facts[index] = self._score(body, request)
            elements.append(text)
        outputs.tensors = [Tensor(BODY, "BYTES", (len(elements),), elements)]
        return outputs

    def _score(self, body: bytes, request: RequestPart) -> tuple[bytes, ScoringAnswer]:
        """Return the answer to one request to /invocations, as MLflow's scoring server gives it."""
        watched = _Watched(self._model)
        content_type = request.facts["content_type"]
        data: bytes | str = body
        if content_type.startswith("text/csv"):  # MLflow 2 reads it as a text only
            with suppress(UnicodeDecodeError):  # MLflow reports the bytes that are not UTF-8
                data = body.decode()
        assert self.source.config is not None
        try:
            check_width(body, content_type, self.source.config.inputs)
            answer = self._scoring.invocations(data, content_type, watched, self._schema)
            text, status, kind = answer.response, answer.status, answer.mimetype
        except Exception as error:
            log.warning("%s failed; request: %s", self._shown(), request.id or "-", exc_info=error)
            # A body that MLflow's reader does not expect is wrong, but predictions without a form in JSON are the model's fault.
            status = 500 if watched.answered else _status(error)
            causes = [self._cause(one) for one in (error, watched.error) if one is not None]
            document = {"error_code": _error_code(error, status), "message": "; ".join(causes)}
            text, kind = json.dumps(document), "application/json"
        return text.encode("utf-8", "replace"), ScoringAnswer(status=status, content_type=kind)

    def close(self) -> None:
        """Release the model."""
        self._model = None


class _Watched:
    """Wraps a model for MLflow's scoring function, and keeps the outcome of `predict`.

    Attributes:
        answered: Whether `predict` has returned.
        error: The exception of `predict`, which MLflow replaces by a general text.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self.metadata = model.metadata
        self.answered = False
        self.error: Exception | None = None

    def predict(self, data: Any, params: dict[str, Any] | None = None) -> Any:
        """Call the model; MLflow looks at the names of the arguments."""
        keywords = {} if params is None else {"params": params}
        try:
            found = self._model.predict(data, **keywords)
        except Exception as error:
            if not hasattr(error, "get_http_status_code"):
                self.error = error
            raise
        self.answered = True
        return found


def _status(error: BaseException) -> int:
    """Return the HTTP status of an error: MLflow's own, or 400."""
    if isinstance(error, MemoryError):
        return 500
    return int(getattr(error, "get_http_status_code", lambda: BAD_REQUEST)())


def _error_code(error: BaseException, status: int) -> str:
    """Return the name of an error in MLflow's answers."""
    return str(
        getattr(error, "error_code", "BAD_REQUEST" if status == BAD_REQUEST else "INTERNAL_ERROR")
    )


def _without_mlflow(folder: Path, error: ImportError) -> str:
    """Return the text for an interpreter without MLflow."""
    served = [file for file in sorted(folder.glob("*")) if file.suffix in OF_THE_FILE]
    model = next((file for file in served if file.name.startswith("model.")), None)
    alone = f"; or serve its file without MLflow: ksrv serve {model}" if model else ""
    return (
        f"{error}; {sys.executable} needs MLflow: {sys.executable} -m pip install mlflow-skinny pandas; or "
        f"{advice(folder)}{alone}"
    )
