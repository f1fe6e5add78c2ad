"""The answers of the health routes, which never wait for a model."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import falcon

from ksrv.errors import cut
from ksrv.server.http.answers import send_json

if TYPE_CHECKING:
    from ksrv.engine.engine import Engine


def server_health(why: str) -> dict[str, object]:
    """Return whether the server is ready.

    Args:
        why: Which models are not ready and why, as `Engine.why_not_ready` says it.
    """
    return {"ready": not why, "live": True} | ({"error": why} if why else {})


def model_health(engine: "Engine", name: str, version: str = "") -> dict[str, object]:
    """Return whether a model serves.

    Raises:
        NotFound: The model is unknown.
    """
    why = engine.why_model_not_ready(name, version)
    degraded = "" if why else engine.why_degraded(name, version)  # it serves, with fewer instances
    texts = {"error": cut(why)} if why else {"reason": cut(degraded)} if degraded else {}
    return {"name": name, "ready": not why, **texts}


class HealthResource:
    """Answers with the document of `health`: 200 if it says ready, else 503.

    Args:
        health: Returns the document, with the key "ready".
    """

    def __init__(self, health: Callable[..., dict[str, object]]) -> None:
        self._health = health

    def on_get(self, req: falcon.Request, resp: falcon.Response, **fields: str) -> None:
        """Answer whether the server, or a model, is ready."""
        document = self._health(**fields)
        if document["ready"]:
            send_json(resp, document)
        else:
            send_json(resp, document, 503)
            resp.set_header("Retry-After", "1")
