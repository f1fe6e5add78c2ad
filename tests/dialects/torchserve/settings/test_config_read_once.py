"""A config.properties is read by the master, at the start and at a reload: never by a worker."""

import os
import signal

import requests

from ksrv.testing import Server
from tests.support.torchserve.archives import archive
from tests.support.wait_until import wait_until


def test_workers_serve_by_what_the_master_read(tmp_path):
    store = tmp_path / "store"
    store.mkdir()
    archive(store, "echo", "seen_handler.py", settings={"deviceType": "cpu"})
    path = tmp_path / "config.properties"
    path.write_text(f"model_store={store}\nload_models=echo.mar\njob_queue_size=7\nvmargs=-Xmx1g\n")
    settings = {"torchserve_config": str(path), "workers": 2, "grpc": "off"}
    with Server([], **settings) as running:
        wait_until(lambda: running.log.count("models loaded in") == 2)
        assert running.log.count("job_queue_size: 7 requests may wait") == 1
        assert running.log.count("vmargs: ignored") == 1
        path.write_text("job_queue_size=none\n")
        os.kill(running.pid, signal.SIGHUP)
        wait_until(lambda: "the reload is refused" in running.log)
        assert requests.post(f"{running.url}/predictions/echo", timeout=30).ok
        path.write_text("job_queue_size=8\n")
        os.kill(running.pid, signal.SIGHUP)
        wait_until(lambda: running.log.count("ready: True") == 4)
        assert running.log.count("job_queue_size: 8 requests may wait") == 1
        assert requests.post(f"{running.url}/predictions/echo", timeout=30).ok
