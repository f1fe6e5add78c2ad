"""The routes that load and unload models."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import falcon

from ksrv.errors import InvalidRequest
from ksrv.protocol.load_parameters import check_parameters, failed_load_texts, read_config
from ksrv.server.http.answers import send_json

if TYPE_CHECKING:
    from ksrv.engine.engine import Engine

ReadDocument = Callable[[falcon.Request], Mapping[str, Any]]


def _parameters(document: Mapping[str, Any]) -> dict[str, Any]:
    parameters = document.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise InvalidRequest("'parameters' must be a JSON object")
    return parameters


class _ManagementResource:
    def __init__(self, engine: "Engine", read_document: ReadDocument) -> None:
        self._engine = engine
        self._read_document = read_document


class IndexResource(_ManagementResource):
    """POST /v2/repository/index."""

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Answer every model and version with its state."""
        ready = self._read_document(req).get("ready", False)
        if not isinstance(ready, bool):
            raise InvalidRequest("'ready' must be true or false")
        entries = []
        for state in self._engine.index(ready_only=ready):
            entry = {"name": state.name, "state": state.state, "reason": state.reason}
            if state.version:
                entry["version"] = state.version
            entries.append(entry)
        send_json(resp, entries)


class LoadResource(_ManagementResource):
    """POST /v2/repository/models/{name}/load."""

    def on_post(self, req: falcon.Request, resp: falcon.Response, name: str) -> None:
        """Load, or load again, a model of the repository; answers when it is ready or failed."""
        with failed_load_texts(name):
            config = read_config(_parameters(self._read_document(req)))
            self._engine.load(name, config)
        send_json(resp, {"name": name, "load": True})


class UnloadResource(_ManagementResource):
    """POST /v2/repository/models/{name}/unload."""

    def on_post(self, req: falcon.Request, resp: falcon.Response, name: str) -> None:
        """Unload a model."""
        check_parameters(_parameters(self._read_document(req)))
        self._engine.unload(name)
        send_json(resp, {"name": name, "unload": True})
