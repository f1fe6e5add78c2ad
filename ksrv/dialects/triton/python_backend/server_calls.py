"""Carries out models' calls to their server in the worker: model_ready, load, unload.

`api/server.py` makes these calls in the handler process.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ksrv.engine.composition import ThreadedCall
from ksrv.errors import HandlerFailed, InvalidRequest, KsrvError
from ksrv.request import InferRequest, InferResponse, RequestHandle

if TYPE_CHECKING:
    from ksrv.engine.engine import Engine


def begin_server_call(engine: "Engine", request: InferRequest) -> RequestHandle:
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


def _answer(engine: "Engine", parameters: Any) -> bool:
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
