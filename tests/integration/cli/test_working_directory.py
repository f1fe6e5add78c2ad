"""A handler that changes the working directory does not move a repository whose path is relative."""

import pytest
import requests

from ksrv.testing import Server
from tests.support.models import write_model
from tests.support.wait_until import wait_until

NUMBER = """
import numpy as np

def inference(x):
    return x * 0 + {number}
"""
MOVES = """
import os

def inference(x):
    os.chdir({folder!r})
    return x
"""
SETTINGS = """
inputs: [{name: x, datatype: FP32, shape: [-1]}]
outputs: [{name: y, datatype: FP32, shape: [-1]}]
warmup: false
"""


def infer(server, model):
    tensor = {"name": "x", "datatype": "FP32", "shape": [1], "data": [0]}
    answer = requests.post(
        f"{server.url}/v2/models/{model}/infer", json={"inputs": [tensor]}, timeout=60
    )
    answer.raise_for_status()
    return answer.json()["outputs"][0]["data"]


@pytest.mark.parametrize("settings", [{}, {"poll_interval": 0.2}], ids=["load call", "poll"])
def test_the_same_repository_is_read_after_a_chdir(tmp_path, monkeypatch, settings):
    other = tmp_path / "other"
    for place, number in ((tmp_path, 1), (other, 666)):
        write_model(place / "models", "number", NUMBER.format(number=number), SETTINGS)
    write_model(tmp_path / "models", "moves", MOVES.format(folder=str(other)), SETTINGS)
    monkeypatch.chdir(tmp_path)
    with Server("models", **settings) as server:
        infer(server, "moves")
        if settings:
            # The poll that finds this model has also looked at `number`.
            write_model(tmp_path / "models", "later", NUMBER.format(number=2), SETTINGS)
            wait_until(lambda: requests.get(f"{server.url}/v2/models/later/ready", timeout=60).ok)
        else:
            for name in ("number", "moves"):
                url = f"{server.url}/v2/repository/models/{name}/load"
                assert requests.post(url, json={}, timeout=60).status_code == 200
        assert infer(server, "number") == [1]
