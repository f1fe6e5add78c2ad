"""The routes that show and reload the models of a config.json."""

from typing import TYPE_CHECKING, Any

import falcon

from ksrv.dialects.kserve_v1.models import version_status
from ksrv.server.http.answers import send_json

if TYPE_CHECKING:
    from ksrv.engine.engine import Engine


def _status(engine: "Engine") -> dict[str, Any]:
    """Return the versions of each model with their states."""
    models: dict[str, Any] = {}
    for state in engine.index():
        entry = models.setdefault(state.name, {"model_version_status": []})
        entry["model_version_status"].append(version_status(state, "OK"))
    return models


class ConfigResource:
    """The models of all config.json files."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """GET /v1/config: answer every model's versions in OVMS's form."""
        send_json(resp, _status(self._engine))

    def on_post_reload(self, req: falcon.Request, resp: falcon.Response) -> None:
        """POST /v1/config/reload: load the changed files; 201 if files have changed, else 200."""
        changed = self._engine.reload_changed()
        send_json(resp, _status(self._engine), 201 if changed else 200)
