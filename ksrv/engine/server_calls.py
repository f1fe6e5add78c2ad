"""Handlers' calls to the server itself: ask whether a model serves, load a model, unload a model."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from ksrv.errors import HandlerFailed, InvalidRequest, KsrvError
from ksrv.request import InferRequest, InferResponse, RequestHandle


class ServerCalls:
    """Answers requests to `ksrv.handlers.models.SERVER`, which no client can make.

    Args:
        ready: Tells whether a model and version serve.
        load: Loads a model, with the configuration of the call or with the model's.
        unload: Unloads a model.
    """

    def __init__(
        self,
        *,
        ready: Callable[[str, str], bool],
        load: Callable[[str, str | None], object],
        unload: Callable[[str], object],
    ) -> None:
        self._ready = ready
        self._load = load
        self._unload = unload

    def __call__(self, request: InferRequest) -> RequestHandle:
        """Begin a call, on a separate thread because a load takes seconds."""
        answered: Future[bool] = Future()

        def run() -> None:
            try:
                answered.set_result(self._answer(request.parameters))
            except KsrvError as error:
                answered.set_exception(error)
            except Exception as error:  # noqa: BLE001  sent to the handler
                text = f"the server cannot answer the handler: {type(error).__name__}: {error}"
                answered.set_exception(HandlerFailed(text))

        threading.Thread(target=run, name="ksrv-server-call", daemon=True).start()
        return AnswerToHandler(answered)

    def _answer(self, parameters: Any) -> bool:
        name = str(parameters.get("model", ""))
        match parameters.get("call"):
            case "ready":
                return self._ready(name, str(parameters.get("version", "")))
            case "load":
                self._load(name, str(parameters.get("config", "")) or None)
                return True
            case "unload":
                self._unload(name)
                return True
            case other:
                raise InvalidRequest(f"a handler asked the server to {other!r}, which it cannot")


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
