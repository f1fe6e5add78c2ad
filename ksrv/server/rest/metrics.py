"""The route that Prometheus scrapes."""

from typing import TYPE_CHECKING

import falcon

from ksrv.observe.metrics import CONTENT_TYPE, exposition

if TYPE_CHECKING:
    from ksrv.server.workers.shared_statistics import ServerStatistics


class MetricsResource:
    """GET /metrics: the statistics of all workers, as Prometheus text.

    Args:
        statistics: The server's statistics.
    """

    def __init__(self, statistics: "ServerStatistics") -> None:
        self._statistics = statistics

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Answer the metrics as they are now."""
        resp.content_type = CONTENT_TYPE
        resp.data = exposition(self._statistics)
