"""The route that Prometheus scrapes."""

from typing import TYPE_CHECKING

import falcon

from ksrv.observe import protobuf_page
from ksrv.observe.metric_aliases import MetricAliases
from ksrv.observe.metrics import CONTENT_TYPE, MetricsPage

if TYPE_CHECKING:
    from ksrv.server.shared.statistics import ServerStatistics


class MetricsResource:
    """GET /metrics: the statistics of all workers, as text or in Prometheus' binary form.

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
        page = MetricsPage(self._statistics.page_values(), self._names)
        resp.set_header("Vary", "Accept")
        if protobuf_page.is_preferred(req.get_header("Accept")):
            resp.content_type = protobuf_page.CONTENT_TYPE
            resp.data = page.binary()
        else:
            resp.content_type = CONTENT_TYPE
            resp.data = page.text
