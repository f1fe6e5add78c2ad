"""The routes /v1/models and /v1/models/NAME, for clients of KServe v1, TensorFlow Serving and OpenAI's API."""

from typing import TYPE_CHECKING, Any

import falcon

from ksrv.engine.model_versions import ModelState
from ksrv.server.http.answers import send_json

if TYPE_CHECKING:
    from ksrv.engine.engine import Engine


def _entry(name: str) -> dict[str, Any]:
    """Return a model's fields in OpenAI's form."""
    return {"id": name, "object": "model", "created": 0, "owned_by": "ksrv"}


STATES = {
    "READY": "AVAILABLE",
    "LOADING": "LOADING",
    "UNLOADING": "UNLOADING",
    "UNAVAILABLE": "END",
}
"""TensorFlow Serving's names of the states of versions."""


def version_status(state: ModelState, fine: str = "") -> dict[str, Any]:
    """Return the state of a version in TensorFlow Serving's form.

    Args:
        fine: The message of a version without a fault.
    """
    code, message = ("UNKNOWN", state.reason) if state.reason else ("OK", fine)
    return {
        "version": state.version or "1",
        "state": STATES[state.state],
        "status": {"error_code": code, "error_message": message},
    }


class V1ModelsResource:
    """The models, in answers that have the fields of all three protocols."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine

    def on_get_list(self, req: falcon.Request, resp: falcon.Response) -> None:
        """GET /v1/models: answer the names of all models of the repository."""
        names = sorted({state.name for state in self._engine.index()})
        data = [_entry(name) for name in names]
        send_json(resp, {"models": names, "object": "list", "data": data})

    def on_get(self, req: falcon.Request, resp: falcon.Response, name: str) -> None:
        """GET /v1/models/{name}: answer whether a model serves."""
        ready = self._engine.model_ready(name)
        versions = [
            version_status(state)
            for state in self._engine.index()
            if state.name == name and state.state in ("READY", "LOADING")
        ]
        document = {"name": name, "ready": ready, "model_version_status": versions}
        document |= _entry(name)
        send_json(resp, document, 200 if ready else 503)
        if not ready:
            resp.set_header("Retry-After", "1")
