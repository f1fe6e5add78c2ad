"""The load in a metrics page, and the number of replicas for a load."""

from types import SimpleNamespace

import pytest

from ksrv.ray import autoscaling
from ksrv.ray.autoscaling import LOAD, LoadMeter, policy

PAGE = """
# TYPE ksrv_pending_requests gauge
ksrv_pending_requests{{model="a",version=""}} {waiting}
ksrv_pending_requests{{model="b",version="1"}} 1
# TYPE ksrv_request_duration_seconds histogram
ksrv_request_duration_seconds_sum{{model="a",version=""}} {spent}
ksrv_request_duration_seconds_count{{model="a",version=""}} 7
# TYPE ksrv_stage_duration_seconds histogram
ksrv_stage_duration_seconds_sum{{model="a",stage="queue",version=""}} {queued}
ksrv_stage_duration_seconds_sum{{model="a",stage="inference",version=""}} 5
"""


@pytest.fixture
def clock(monkeypatch):
    now = SimpleNamespace(time=100.0)
    monkeypatch.setattr(autoscaling.time, "monotonic", lambda: now.time)
    return now


def test_load_is_waiting_plus_mean_running_requests(clock):
    meter = LoadMeter()
    assert meter.load(PAGE.format(waiting=4, spent=10, queued=3)) == 5
    clock.time += 2
    assert meter.load(PAGE.format(waiting=0, spent=20, queued=7)) == 1 + (13 - 7) / 2
    clock.time += 2
    assert meter.load(PAGE.format(waiting=0, spent=0.5, queued=0.25)) == 1  # counters restarted
    assert meter.load(PAGE.format(waiting=2, spent=9, queued=0)) == 3  # no time has passed


def context(running, loads, target=4, wanted=None):
    return SimpleNamespace(
        current_num_replicas=running,
        target_num_replicas=running if wanted is None else wanted,
        aggregated_metrics=loads,
        config=SimpleNamespace(get_target_ongoing_requests=lambda: target),
    )


@pytest.mark.parametrize(
    ("running", "loads", "replicas"),
    [
        (1, {"a": 16.0}, 4),
        (4, {"a": 4.0, "b": 4.0, "c": 4.0, "d": 4.0}, 4),
        (4, {"a": 1.0, "b": 0.0, "c": 1.0, "d": 0.0}, 0.5),
        (3, {"a": 8.0}, 6),  # two have not reported yet
    ],
)
def test_replicas_follow_the_load(running, loads, replicas):
    assert policy(context(running, {LOAD: loads})) == (replicas, {})


@pytest.mark.parametrize("metrics", [None, {}, {LOAD: {}}, {"another": {"a": 1.0}}])
def test_missing_load_keeps_the_replicas(metrics):
    assert policy(context(2, metrics, wanted=3)) == (3, {})


def test_missing_replicas_keep_the_target():
    assert policy(context(0, {LOAD: {"gone": 9.0}}, wanted=1)) == (1, {})
