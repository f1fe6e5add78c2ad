"""The routes that load and unload models: Triton's repository calls and OVMS's configuration calls."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import falcon

from ksrv.errors import InvalidRequest
from ksrv.protocol.load_parameters import check_parameters, read_config, telling_failed_load
from ksrv.server.http.answers import send_json

if TYPE_CHECKING:
    from ksrv.engine.engine import Engine

ReadDocument = Callable[[falcon.Request], Mapping[str, Any]]

_OVMS_STATES = {
    "READY": "AVAILABLE",
    "LOADING": "LOADING",
    "UNLOADING": "UNLOADING",
    "UNAVAILABLE": "END",
}


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
        with telling_failed_load(name):
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


def _ovms_status(engine: "Engine") -> dict[str, Any]:
    models: dict[str, Any] = {}
    for state in engine.index():
        entry = {
            "version": state.version or "1",
            "state": _OVMS_STATES[state.state],
            "status": {
                "error_code": "UNKNOWN" if state.reason else "OK",
                "error_message": state.reason or "OK",
            },
        }
        models.setdefault(state.name, {"model_version_status": []})
        models[state.name]["model_version_status"].append(entry)
    return models


class OvmsConfigResource:
    """GET /v1/config."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Answer every model's versions in OVMS's form."""
        send_json(resp, _ovms_status(self._engine))


class OvmsReloadResource:
    """POST /v1/config/reload."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Load what changed on disk: 201 when something was, 200 when nothing had to be."""
        changed = self._engine.reload_changed()
        send_json(resp, _ovms_status(self._engine), 201 if changed else 200)
