"""Handlers' calls to the server itself: ask whether a model serves, load a model, unload a model."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Protocol

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
    """Begin a handler's request to `ksrv.handlers.models.SERVER`. Clients cannot make such requests.

    It runs on a separate thread because a load takes seconds.
    """
    answered: Future[bool] = Future()

    def run() -> None:
        try:
            answered.set_result(_answer(engine, request.parameters))
        except KsrvError as error:
            answered.set_exception(error)
        except Exception as error:  # noqa: BLE001  sent to the handler
            text = f"the server cannot answer the handler: {type(error).__name__}: {error}"
            answered.set_exception(HandlerFailed(text))

    threading.Thread(target=run, name="ksrv-server-call", daemon=True).start()
    return AnswerToHandler(answered)


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


class AnswerToHandler:
    """The answer to a call: a `RequestHandle`, which cannot be given up."""

    def __init__(self, answered: "Future[bool]") -> None:
        self._answered = answered

    def wait(self) -> InferResponse:
        """See `RequestHandle.wait`."""
        return InferResponse("", "", "", [], {"answer": self._answered.result()})

    def cancel(self) -> bool:
        """See `RequestHandle.cancel`. A load that has begun is not cancelled."""
        return False

    def done(self) -> bool:
        """See `RequestHandle.done`."""
        return self._answered.done()

    def add_done_callback(self, callback: Callable[[RequestHandle], object]) -> None:
        """See `RequestHandle.add_done_callback`."""

        def ended(_: "Future[bool]") -> None:
            with suppress(RuntimeError):  # the event loop that waited is closed
                callback(self)

        self._answered.add_done_callback(ended)
