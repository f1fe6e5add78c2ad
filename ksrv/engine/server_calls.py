"""Handlers' calls to the server itself: ask whether a model serves, load a model, unload a model."""

from collections.abc import Callable
from typing import Any, Protocol

from ksrv.engine.composition import ThreadedCall
from ksrv.errors import HandlerFailed, InvalidRequest, KsrvError
from ksrv.request import InferRequest, InferResponse, RequestHandle


class ModelControl(Protocol):
    """The calls of the engine that handlers may make."""

    def model_ready(self, name: str, version: str) -> bool:
        """Return whether a model serves."""

    def load(self, name: str, config: str | None) -> None:
        """Load a model, with the configuration of the call or with the model's."""

    def unload(self, name: str) -> None:
        """Unload a model."""


def begin_server_call(engine: ModelControl, request: InferRequest) -> RequestHandle:
    """Begin a handler's request to `ksrv.handlers.models.SERVER`. Clients cannot make such requests."""

    def call(_: Callable[[], bool]) -> InferResponse:
        try:
            answer = _answer(engine, request.parameters)
        except KsrvError:
            raise
        except Exception as error:
            text = f"the server cannot answer the handler: {type(error).__name__}: {error}"
            raise HandlerFailed(text) from error
        return InferResponse("", "", "", [], {"answer": answer})

    return ThreadedCall(call)


def _answer(engine: ModelControl, parameters: Any) -> bool:
    name = str(parameters.get("model", ""))
    match parameters.get("call"):
        case "ready":
            return engine.model_ready(name, str(parameters.get("version", "")))
        case "load":
            engine.load(name, str(parameters.get("config", "")) or None)
        case "unload":
            engine.unload(name)
        case other:
            raise InvalidRequest(f"a handler asked the server to {other!r}, which it cannot")
    return True
