"""Computes how many replicas the load needs, for Ray Serve's autoscaler.

Ray does not see the requests that arrive on a replica's ports. So each replica reports its load, which `LoadMeter`
reads from the metrics page: the requests that wait in its queues, plus the mean number of requests that ran since the
last report. `policy` computes the number of replicas from the loads; Ray Serve applies its delays and bounds.
"""

import time
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

LOAD = "ksrv_load"
"""The name of the load in Ray's reports."""


class LoadMeter:
    """Computes a server's load from successive metrics pages."""

    def __init__(self) -> None:
        # The time of the last page, and the seconds that requests had run until then, all added up.
        self._seen: tuple[float, float] | None = None

    def load(self, page: str) -> float:
        """Return the requests that wait now, and the mean number of requests that ran since the last page."""
        # The time that requests ran is their duration without the time in the queue. Divided by the time between two
        # pages, its increase is the mean number of running requests.
        waiting = spent = 0.0
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                if sample.name == "ksrv_pending_requests":
                    waiting += sample.value
                elif sample.name == "ksrv_request_duration_seconds_sum":
                    spent += sample.value
                elif (
                    sample.name == "ksrv_stage_duration_seconds_sum"
                    and sample.labels.get("stage") == "queue"
                ):
                    spent -= sample.value
        now = time.monotonic()
        before, self._seen = self._seen, (now, spent)
        if before is None or now <= before[0]:
            return waiting
        # A reload resets the sums, so the difference may be negative.
        return waiting + max(0.0, spent - before[1]) / (now - before[0])


def policy(context: Any) -> tuple[float, dict[str, Any]]:
    """Return the number of replicas at which their mean load would be the target. An autoscaling policy of Ray Serve.

    Args:
        context: Ray Serve's `AutoscalingContext`; its config's `target_ongoing_requests` is the target.

    Returns:
        The number, to which Ray Serve applies its delays and bounds, and an empty state.
    """
    running = context.current_num_replicas
    loads = (context.aggregated_metrics or {}).get(LOAD, {})
    if running == 0 or not loads:
        return float(context.target_num_replicas), {}
    # A replica that has not reported yet counts with the mean load.
    mean = sum(loads.values()) / len(loads)
    return running * mean / context.config.get_target_ongoing_requests(), {}
