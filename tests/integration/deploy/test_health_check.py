"""The container's health check against real servers."""

import os
import subprocess
import sys

import pytest

from ksrv.testing import Server
from tests.support.certificates import self_signed
from tests.support.models import DOUBLE, VECTOR, write_model
from tests.unit.deploy.packages import DEPLOY


@pytest.fixture
def models(tmp_path):
    write_model(tmp_path / "models", "double", DOUBLE, VECTOR)
    return tmp_path / "models"


def check(server, **variables):
    port = server.http.rsplit(":", 1)[1]
    return subprocess.run(
        [sys.executable, "-I", str(DEPLOY / "docker/healthcheck.py")],
        env={"PATH": os.environ["PATH"], "KSRV_HTTP": f"0.0.0.0:{port}"} | variables,
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_a_ready_server_is_healthy_and_none_is_not(models):
    with Server(models) as server:
        assert check(server).returncode == 0
    done = check(server)
    assert done.returncode == 1
    assert "the server cannot be asked" in done.stderr


def test_a_server_without_its_model_is_not_healthy(models):
    (models / "double" / "handler.py").write_text("import nothing_of_this_name")
    with Server(models, wait_ready=False) as server:
        assert check(server).returncode == 1


@pytest.mark.parametrize("mutual", [False, True])
def test_a_server_with_TLS_is_asked_over_TLS(models, tmp_path, mutual):
    key, cert = self_signed(tmp_path)
    settings = {"tls_cert": str(cert), "tls_key": str(key)}
    variables = {"KSRV_TLS_CERT": str(cert)}
    if mutual:
        settings["tls_client_ca"] = variables["KSRV_TLS_CLIENT_CA"] = str(cert)
    with Server(models, wait_ready=not mutual, **settings) as server:
        assert check(server, **variables).returncode == 0
