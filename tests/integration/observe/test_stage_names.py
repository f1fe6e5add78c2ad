"""The stages of a request have one name each: in `Server-Timing`, in the statistics and in /metrics."""

import re

import requests

from ksrv._native.queue.stats import STAGE_NAMES
from ksrv.observe.metrics import STAGES
from tests.support.wire.http_reader import double_body


def test_headers_statistics_and_metrics_agree(server):
    url = f"{server.url}/v2/models/double/infer"
    timed = set()
    for headers in ({}, {"Connection": "close"}):  # of the HTTP server, and of the app
        answer = requests.post(url, data=double_body(), headers=headers)
        timed |= {entry.partition(";")[0] for entry in answer.headers["Server-Timing"].split(", ")}
    page = requests.get(f"{server.url}/metrics").text
    shown = set(re.findall(r'ksrv_stage_duration_seconds_count\{.*?stage="(\w+)"', page))
    assert "assemble" in timed and timed <= shown
    assert shown <= set(STAGES) <= set(STAGE_NAMES)


def test_restarts_are_those_of_instances(server):
    page = requests.get(f"{server.url}/metrics").text
    assert re.search(r'ksrv_instance_restarts_total\{model="double",version="[^"]*"\} 0.0', page)
    assert "ksrv_worker_restarts" not in page
