"""The stages of a request have one name each: in `Server-Timing`, in the statistics and in /metrics."""

import re

import cv2
import numpy as np
import pytest
import requests

from ksrv._native.queue.stats import STAGE_NAMES
from ksrv.observe.metrics import STAGES
from ksrv.testing import Server
from tests.support.models import write_model
from tests.support.wire.http_reader import double_body

PICTURE = """
from ksrv import Float32, Image


def inference(picture: Image[64, 64, 3]) -> Float32:
    return picture.mean(axis=(1, 2, 3))
"""


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


@pytest.mark.parametrize("executor", ["inline", "process"])
@pytest.mark.parametrize("headers", [{}, {"Connection": "close"}], ids=["native", "app"])
def test_waiting_is_told_without_the_decoding(tmp_path, executor, headers):
    write_model(tmp_path, "mean", PICTURE, f"executor: {executor}\n")
    noise = np.random.default_rng(0).integers(0, 256, (3000, 3000, 3), np.uint8)
    picture = cv2.imencode(".jpg", noise)[1].tobytes()
    with Server(tmp_path, grpc="off") as server:
        url = f"{server.url}/v2/models/mean"
        answer = requests.post(f"{url}/infer", files={"picture": picture}, headers=headers)
        assert answer.status_code == 200, answer.text
        times = {
            name: float(rest.removeprefix("dur="))
            for name, _, rest in (
                part.partition(";") for part in answer.headers["Server-Timing"].split(", ")
            )
        }
        stats = requests.get(f"{url}/stats").json()["model_stats"][0]["inference_stats"]
    assert times["queue"] < times["assemble"], times  # of a lone request on an idle model
    assert stats["queue"]["ns"] < stats["compute_input"]["ns"]
