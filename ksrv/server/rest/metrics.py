"""The route that Prometheus scrapes."""

from typing import TYPE_CHECKING

import falcon

from ksrv.observe.metric_aliases import MetricAliases
from ksrv.observe.metrics import CONTENT_TYPE, metrics_page

if TYPE_CHECKING:
    from ksrv.server.shared.statistics import ServerStatistics


class MetricsResource:
    """GET /metrics: the statistics of all workers, in Prometheus' text format.

    Args:
        names: The servers under whose names the models' metrics are there as well.
    """

    def __init__(
        self, statistics: "ServerStatistics", names: tuple[MetricAliases, ...] = ()
    ) -> None:
        self._statistics = statistics
        self._names = names

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Answer the metrics as they are now."""
        resp.content_type = CONTENT_TYPE
        resp.data = metrics_page(self._statistics.page_values(), self._names)
