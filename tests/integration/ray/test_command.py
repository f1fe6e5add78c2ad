"""`ksrv serve --ray ADDRESS` on a cluster that runs."""

import contextlib
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


@contextlib.contextmanager
def running(cluster, models, log, replicas, *flags):
    """Run the command until its replicas are listed in its log."""
    command = [sys.executable, "-m", "ksrv", "serve", os.path.relpath(models), "--insecure"]
    command += ["--ray", cluster.address, "--ray-replicas", replicas, "--ray-app", "by command"]
    command += ["--drain-delay", "0.5", *flags]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        count = int(replicas)
        wait_until(lambda: len(ADDRESS.findall(log.read_text())) >= count, 180, log.read_text)
        yield process
    finally:
        process.terminate()
        process.wait(120)


def test_a_command_that_serves_until_it_is_ended(cluster, models, tmp_path):
    from ray import serve

    log = tmp_path / "log"
    with running(cluster, models, log, "2", "--limits-body", "2M") as process:
        found = {http for http, _ in ADDRESS.findall(log.read_text())}
        assert len(found) == 2
        for http in found:
            infer = f"http://{http}/v2/models/echo/infer"
            assert requests.post(infer, BODY).json()["outputs"][0]["data"] == [1, 2, 3, 4]
            refused = requests.post(infer, bytes(3 << 20))
            assert (refused.status_code, "2097152" in refused.text) == (413, True)
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0, log.read_text()
    assert "by command" not in serve.status().applications


def test_a_command_whose_application_another_client_deletes(cluster, models, tmp_path):
    from ray import serve

    log = tmp_path / "log"
    with running(cluster, models, log, "1") as process:
        serve.delete("by command")
        assert process.wait(120) == 1
    assert "the application 'by command' was deleted on the cluster" in log.read_text()


def test_a_cluster_that_is_not_there(models):
    command = [sys.executable, "-m", "ksrv", "serve", str(models), "--ray", "127.0.0.1:1"]
    environment = os.environ | {"RAY_gcs_rpc_server_reconnect_timeout_s": "1"}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment)
    assert (ended.returncode, "127.0.0.1:1" in ended.stderr) == (1, True), ended.stderr
