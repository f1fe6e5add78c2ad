"""`ksrv serve --ray ADDRESS` on a cluster that runs."""

import os
import re
import signal
import subprocess
import sys

import pytest
import requests

from tests.support.ray.ray_cluster import BODY
from tests.support.wait_until import wait_until

pytest.importorskip("ray")
pytestmark = pytest.mark.slow

ADDRESS = re.compile(r"^HTTP  (\S+)  gRPC  (\S+)  node [0-9a-f]{8}$", re.MULTILINE)


def test_a_command_that_serves_until_it_is_ended(cluster, models, tmp_path):
    from ray import serve

    command = [sys.executable, "-m", "ksrv", "serve", os.path.relpath(models)]
    command += ["--ray", cluster.address, "--ray-replicas", "2", "--ray-app", "by command"]
    command += ["--insecure", "--drain-delay", "0.5", "--limits-body", "2M"]
    log = tmp_path / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        wait_until(lambda: len(ADDRESS.findall(log.read_text())) >= 2, 180, log.read_text)
        found = {http for http, _ in ADDRESS.findall(log.read_text())}
        assert len(found) == 2
        for http in found:
            infer = f"http://{http}/v2/models/echo/infer"
            assert requests.post(infer, BODY).json()["outputs"][0]["data"] == [1, 2, 3, 4]
            refused = requests.post(infer, bytes(3 << 20))
            assert (refused.status_code, "2097152" in refused.text) == (413, True)
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0, log.read_text()
    finally:
        process.terminate()
        process.wait(120)
    assert "by command" not in serve.status().applications


def test_a_cluster_that_is_not_there(models):
    command = [sys.executable, "-m", "ksrv", "serve", str(models), "--ray", "127.0.0.1:1"]
    environment = os.environ | {"RAY_gcs_rpc_server_reconnect_timeout_s": "1"}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment)
    assert (ended.returncode, "127.0.0.1:1" in ended.stderr) == (1, True), ended.stderr
