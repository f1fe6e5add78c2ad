"""GET and POST /v2/logging: levels change in every worker and handler process, files never."""

import pytest
import requests

from ksrv.testing import Server
from tests.support.models import VECTOR, write_model
from tests.support.wait_until import wait_until

SAYS = """
import logging


def inference(x):
    logging.getLogger("ksrv.mine").debug("said %d", int(x[0, 0]))
    return {"y": x}
"""
AT_START = {
    "log_file": "", "log_info": True, "log_warning": True, "log_error": True,
    "log_verbose_level": 0, "log_format": "default",
}  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    write_model(folder, "m", SAYS, VECTOR)
    write_model(folder, "separate", SAYS, VECTOR + "executor: process\n")
    with Server(folder, workers=2, grpc="off") as running:
        wait_until(lambda: running.log.count("ready: True") == 2)
        yield running


def change(server, **settings):
    return requests.post(server.url + "/v2/logging", json=settings, timeout=30)


def shown(server):
    return requests.get(server.url + "/v2/logging", timeout=30).json()


def say(server, number, model="m"):
    entry = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [number, 2, 3, 4]}
    answer = requests.post(
        f"{server.url}/v2/models/{model}/infer", json={"inputs": [entry]}, timeout=30
    )
    assert answer.status_code == 200


@pytest.mark.parametrize(("model", "first"), [("m", 100), ("separate", 200)])
def test_a_level_changes_in_every_worker_and_back(server, model, first):
    told = server.log.count("logs from DEBUG on")
    assert shown(server) == AT_START
    say(server, first + 31, model)
    assert change(server, log_verbose_level=1).json() == AT_START | {"log_verbose_level": 1}
    for _ in range(20):  # whichever worker answers
        assert shown(server)["log_verbose_level"] == 1
    # Handler processes get the level and log it: one process for each worker.
    wait_until(lambda: server.log.count("logs from DEBUG on") >= told + 2)
    numbers = range(first, first + 20)
    for number in numbers:
        say(server, number, model)
    wait_until(lambda: all(f"said {number}" in server.log for number in numbers))
    assert change(server, log_verbose_level=0).json() == AT_START
    say(server, first + 32, model)
    quiet = change(server, log_info=False, log_warning=False).json()
    assert quiet == AT_START | {"log_info": False, "log_warning": False}
    assert change(server, log_info=True).json() == AT_START
    assert f"said {first + 31}\n" not in server.log
    assert f"said {first + 32}\n" not in server.log


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"log_file": "/tmp/x"}, "cannot be changed by a call"),
        ({"log_format": "ISO8601"}, "cannot be changed by a call"),
        ({"log_info": 1}, "`bool`, got `int` - at `$.log_info`"),
        ({"log_verbose_level": -1}, "`int` >= 0 - at `$.log_verbose_level`"),
        ({"log_verbose_level": True}, "`int`, got `bool`"),
        ({"log_verbose_level": 10**30}, ""),
        ({"log_all": True}, "unknown log setting 'log_all'"),
        ({"log_info": False, "log_warning": False, "log_error": False}, "errors are always logged"),
    ],
)
def test_invalid_log_settings_are_refused(server, settings, said):
    before = shown(server)
    answer = change(server, **settings)
    assert answer.status_code == 400
    assert said in answer.json()["error"]
    assert shown(server) == before
