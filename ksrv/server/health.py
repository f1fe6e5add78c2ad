"""The health routes. They need no credentials and never wait for a model."""

from typing import TYPE_CHECKING

import falcon

from ksrv.server.responses import send_json

if TYPE_CHECKING:
    from ksrv.engine.engine import Engine


class LiveResource:
    """GET /v2/health/live: the process answers."""

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Answer that the server lives."""
        send_json(resp, {"live": True})

    on_head = on_get


class ReadyResource:
    """GET /v2/health/ready: models are loaded and warm, and the server is not going away."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Answer whether requests will be served."""
        ready = self._engine.ready()
        send_json(resp, {"ready": ready, "live": True}, 200 if ready else 503)
        if not ready:
            resp.set_header("Retry-After", "1")

    on_head = on_get


class ModelReadyResource:
    """GET /v2/models/{name}[/versions/{version}]/ready."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine

    def on_get(
        self, req: falcon.Request, resp: falcon.Response, name: str, version: str = ""
    ) -> None:
        """Answer whether a model serves; an unknown one is a 404."""
        ready = self._engine.model_ready(name, version)
        send_json(resp, {"name": name, "ready": ready}, 200 if ready else 503)
        if not ready:
            resp.set_header("Retry-After", "1")
