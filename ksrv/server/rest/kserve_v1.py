"""The routes of KServe's protocol v1 and of TensorFlow Serving's, for clients that speak no other."""

from typing import TYPE_CHECKING

import falcon

from ksrv.server.http.answers import send_json

if TYPE_CHECKING:
    from ksrv.engine.engine import Engine


class V1ModelResource:
    """GET /v1/models/{name}: whether it serves, in KServe's form and in TensorFlow Serving's."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine

    def on_get(self, req: falcon.Request, resp: falcon.Response, name: str) -> None:
        """Answer a model's state."""
        ready = self._engine.model_ready(name)
        versions = [
            {
                "version": state.version or "1",
                "state": "AVAILABLE" if state.state == "READY" else "LOADING",
                "status": {
                    "error_code": "UNKNOWN" if state.reason else "OK",
                    "error_message": state.reason,
                },
            }
            for state in self._engine.index()
            if state.name == name and state.state in ("READY", "LOADING")
        ]
        document = {"name": name, "ready": ready, "model_version_status": versions}
        send_json(resp, document, 200 if ready else 503)
