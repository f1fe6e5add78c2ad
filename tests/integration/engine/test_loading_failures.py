"""A failure while a model is loaded concerns that model only: the others are served."""

import json
import zipfile

import pytest
import requests

from ksrv.testing import Server
from tests.support.models import DOUBLE, VECTOR, write_model
from tests.support.wait_until import wait_until
from tests.support.wire.http_reader import double_body

HANDLER = """
import asyncio, sys
from ksrv import BaseHandler
{on_import}

class Handler(BaseHandler):
    def initialize(self, context):
        {on_initialize}

    def inference(self, x):
        return {{"y": x}}
"""

DEEP = "a:\n " + "- " * 2000 + "x\n"  # PyYAML takes a second for as many brackets


def write_archive(root, name, settings):
    """A TorchServe archive whose model-config.yaml is `settings`."""
    model = {"modelName": name, "handler": "own.py", "configFile": "model-config.yaml"}
    with zipfile.ZipFile(root / f"{name}.mar", "w") as archive:
        archive.writestr("MAR-INF/MANIFEST.json", json.dumps({"model": model}))
        archive.writestr("own.py", "def handle(data, context):\n    return data\n")
        archive.writestr("model-config.yaml", settings)


def index(server):
    entries = requests.post(f"{server.url}/v2/repository/index", timeout=30).json()
    return {entry["name"]: entry for entry in entries}


def doubles(server, model):
    url = f"{server.url}/v2/models/{model}/infer"
    return requests.post(url, data=double_body(), timeout=30).status_code == 200


def loaded(server):
    """Wait until every model has been loaded or has failed; the index."""
    wait_until(lambda: "models loaded" in server.log)
    return index(server)


@pytest.mark.parametrize("executor", ["inline", "process"])
def test_handler_that_exits_fails_only_its_load(tmp_path, executor):
    ways = {
        "exits": ("sys.exit(3)", "pass", "SystemExit: 3 (handler.py, line 4)"),
        "exits-later": ("", "sys.exit('no weights')", "SystemExit: no weights (handler.py"),
        "cancels": ("raise asyncio.CancelledError", "pass", "CancelledError"),
        "interrupts": ("", "raise KeyboardInterrupt", "KeyboardInterrupt"),
    }
    for name, (on_import, on_initialize, _) in ways.items():
        handler = HANDLER.format(on_import=on_import, on_initialize=on_initialize)
        write_model(tmp_path, name, handler, f"{VECTOR}executor: {executor}\n")
    write_model(tmp_path, "zebra", DOUBLE, VECTOR)
    with Server(tmp_path, wait_ready=False) as server:
        found = loaded(server)
        for name, (_, _, reason) in ways.items():
            assert found[name]["state"] == "UNAVAILABLE"
            assert reason in found[name]["reason"]
        assert found["zebra"]["state"] == "READY"
        assert doubles(server, "zebra")


def test_recursion_errors_of_a_load_fail_only_its_model(tmp_path):
    write_archive(tmp_path, "archive", DEEP)
    write_archive(tmp_path, "date", "a: 2020-99-99\n")
    write_model(tmp_path, "folder", DOUBLE, DEEP)
    endless = HANDLER.format(on_import="def f(): f()\nf()", on_initialize="pass")
    write_model(tmp_path, "handler", endless, VECTOR)
    write_model(tmp_path, "zebra", DOUBLE, VECTOR)
    with Server(tmp_path, wait_ready=False) as server:
        found = loaded(server)
        for name in ("archive", "folder"):
            assert found[name]["state"] == "UNAVAILABLE"
            assert "nested" in found[name]["reason"]
        assert "model-config.yaml" in found["date"]["reason"]
        assert "RecursionError" in found["handler"]["reason"]
        assert doubles(server, "zebra")
        control = f"{server.url}/v2/repository/models"
        write_model(tmp_path, "other", DOUBLE, VECTOR)
        assert requests.post(f"{control}/other/load", timeout=30).status_code == 200
        write_model(tmp_path, "third", DOUBLE, VECTOR)
        assert requests.post(f"{server.url}/v1/config/reload", timeout=30).status_code == 201
        refused = requests.post(f"{control}/archive/load", timeout=30)
        assert "nested" in refused.json()["error"]
        assert doubles(server, "zebra") and doubles(server, "other") and doubles(server, "third")
