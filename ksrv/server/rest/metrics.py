"""The route that Prometheus scrapes."""

from typing import TYPE_CHECKING

import falcon

from ksrv.observe.metrics import CONTENT_TYPE, exposition

if TYPE_CHECKING:
    from ksrv.engine.engine import Engine


class MetricsResource:
    """GET /metrics: what this worker's engine has done, as Prometheus text.

    Args:
        engine: The worker's engine.
    """

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Answer the metrics as they are now."""
        resp.content_type = CONTENT_TYPE
        resp.data = exposition(self._engine)
