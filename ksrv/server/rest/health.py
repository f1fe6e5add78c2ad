"""The health routes. They need no credentials and never wait for a model."""

from typing import TYPE_CHECKING

import falcon

from ksrv.errors import cut
from ksrv.server.http.answers import send_json

if TYPE_CHECKING:
    from ksrv.engine.engine import Engine


def unready(why: str) -> dict[str, object]:
    """Return the answer while the server is not ready.

    Args:
        why: Which models are not ready and why, as `Engine.why_not_ready` says it.
    """
    return {"ready": False, "live": True, "error": why}


def model_ready(name: str) -> dict[str, object]:
    """Return the answer for a model that serves."""
    return {"name": name, "ready": True}


class LiveResource:
    """GET /v2/health/live: the process answers."""

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Answer that the server lives."""
        send_json(resp, {"live": True})


class ReadyResource:
    """GET /v2/health/ready: models are loaded and warm, and the server is not going away.

    Args:
        engine: The engine, which knows what is ready.
        names: Whether models that are not ready are named: to those who may list them anyway.
    """

    def __init__(self, engine: "Engine", *, names: bool) -> None:
        self._engine = engine
        self._names = names

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Answer whether requests are served, and if not, which models are not ready."""
        why = self._engine.why_not_ready(names=self._names)
        if not why:
            send_json(resp, {"ready": True, "live": True})
            return
        send_json(resp, unready(why), 503)
        resp.set_header("Retry-After", "1")


class ModelReadyResource:
    """GET /v2/models/{name}[/versions/{version}]/ready."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine

    def on_get(
        self, req: falcon.Request, resp: falcon.Response, name: str, version: str = ""
    ) -> None:
        """Answer whether a model serves; an unknown model is a 404."""
        why = self._engine.why_model_not_ready(name, version)
        if not why:
            lost = self._engine.why_degraded(name, version)
            send_json(resp, model_ready(name) | ({"reason": cut(lost)} if lost else {}))
            return
        send_json(resp, {"name": name, "ready": False, "error": cut(why)}, 503)
        resp.set_header("Retry-After", "1")
