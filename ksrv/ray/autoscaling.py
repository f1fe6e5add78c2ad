"""How many replicas the queues ask for; Ray Serve's autoscaler decides when and where.

Requests that arrive on a replica's ports are unknown to Ray, so each replica reports its load: the
requests that wait in its queues and the mean number of requests that ran since the last report, both out of
the metrics page. Ray Serve's rule is applied to the sum, with Ray Serve's delays and bounds.
"""

import time
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

LOAD = "ksrv_load"
"""The name of the load in Ray's reports."""


class LoadMeter:
    """Turns one metrics page after the other into the number of requests that a server has on its hands."""

    def __init__(self) -> None:
        self._seen: tuple[float, float] | None = None

    def load(self, page: str) -> float:
        """Return the requests that wait now, and the mean number of requests that ran since the last page."""
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
        # A reload begins the sums anew.
        return waiting + max(0.0, spent - before[1]) / (now - before[0])


def policy(context: Any) -> tuple[float, dict[str, Any]]:
    """Return the number of replicas whose mean load is the target: Ray Serve's autoscaling policy.

    Args:
        context: Ray Serve's `AutoscalingContext`; its config's `target_ongoing_requests` is the target.

    Returns:
        The number, to which Ray Serve applies its delays and bounds, and no state.
    """
    running = context.current_num_replicas
    loads = (context.aggregated_metrics or {}).get(LOAD, {})
    if running == 0 or not loads:
        return float(context.target_num_replicas), {}
    mean = sum(loads.values()) / len(
        loads
    )  # a replica that has not reported yet counts with the mean load
    return running * mean / context.config.get_target_ongoing_requests(), {}
