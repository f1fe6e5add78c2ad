"""The calls of grpc.health.v1.Health: whether the server or a model is ready, and a stream of changes (Watch).

The service name "" and the names of the server's services are the server; any other name is a model, or a version of a
model as `name/version`. Calls about a model, and the list of models, need the credentials of an ordinary call.
"""

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ksrv._native.grpc.grpc_call import Call
from ksrv.errors import KsrvError, NotFound, quote
from ksrv.protocol.protobuf import HEALTH, INFERENCE, REFLECTION, message_class
from ksrv.server.grpc.calls import Check

if TYPE_CHECKING:
    from ksrv.engine.engine import Engine

SERVING = 1
NOT_SERVING = 2
SERVICE_UNKNOWN = 3

POLL_SECONDS = 0.25
"""The pause between two looks at a watched state."""

_SERVER_NAMES = frozenset({"", INFERENCE, HEALTH, REFLECTION})


class Health:
    """The health calls of one server.

    Args:
        engine: The engine, which knows what is ready.
        closing: Set when the server stops. Watchers then get NOT_SERVING, and their calls end.
        check: The check of callers that ask for models.
    """

    def __init__(self, engine: "Engine", closing: threading.Event, check: Check) -> None:
        self._engine = engine
        self._check = check
        self._closing = closing

    def check(self, request: Any, call: Call) -> Any:
        """Answer the state of one service.

        Raises:
            NotFound: The service is unknown.
        """
        self._check_for(request.service, call)
        status = self._status(request.service)
        if status == SERVICE_UNKNOWN:
            raise NotFound(
                f"service {quote(request.service)} is neither the server's nor a model's"
            )
        return _response(status)

    def list(self, request: Any, call: Call) -> Any:
        """Answer the state of the server and of every model."""
        answer = message_class("grpc.health.v1.HealthListResponse")()
        for name in ["", INFERENCE, *{state.name for state in self._engine.index()}]:
            answer.statuses[name].status = self._status(name)
        return answer

    def watch(self, request: Any, call: Call) -> Iterator[Any]:
        """Answer the state of one service now and after each change."""
        self._check_for(request.service, call)
        sent = None
        while call.is_active():
            # Read before the state, so that NOT_SERVING is always sent before the stream ends.
            closing = self._closing.is_set()
            status = self._status(request.service)
            if status != sent:
                sent = status
                yield _response(status)
            if closing:
                return
            self._closing.wait(POLL_SECONDS)

    def _check_for(self, service: str, call: Call) -> None:
        """Check a caller that asks for a model."""
        if service not in _SERVER_NAMES:
            self._check(call)

    def _status(self, service: str) -> int:
        """Return the state of the server, of a model, or of a model's version."""
        if self._closing.is_set():
            return NOT_SERVING
        if service in _SERVER_NAMES:
            return SERVING if self._engine.ready() else NOT_SERVING
        before, slash, after = service.rpartition("/")
        for name, version in [(service, ""), (before, after)][: 2 if slash else 1]:
            try:
                return SERVING if self._engine.model_ready(name, version) else NOT_SERVING
            except NotFound:
                continue
            except KsrvError:
                return NOT_SERVING
        return SERVICE_UNKNOWN


def _response(status: int) -> Any:
    return message_class("grpc.health.v1.HealthCheckResponse")(status=status)
