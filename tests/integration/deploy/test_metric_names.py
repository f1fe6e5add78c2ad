"""Every metric that an alert, a panel or the autoscaler names is on the page of a real server."""

import os
import signal

import pytest
import requests

from ksrv.testing import Server
from tests.support.certificates import self_signed
from tests.support.models import DOUBLE, VECTOR, write_model
from tests.support.wait_until import wait_until
from tests.unit.deploy.promql import metric_names


@pytest.fixture
def page(tmp_path):
    """The page of a server with TLS that has refused a call and has been reloaded."""
    write_model(tmp_path / "models", "double", DOUBLE, VECTOR)
    key, cert = self_signed(tmp_path)
    (tmp_path / "tokens").write_text("secret\n")
    settings = {"tls_cert": cert, "tls_key": key, "token_file": tmp_path / "tokens"}
    named = {name: str(path) for name, path in settings.items()}
    with Server(tmp_path / "models", **named) as server:

        def get(path, token="secret"):
            headers = {"Authorization": f"Bearer {token}"}
            url = f"{server.url}{path}"
            return requests.get(url, verify=str(cert), headers=headers, timeout=30)

        os.kill(server.pid, signal.SIGHUP)
        wait_until(
            lambda: "\nksrv_last_reload_timestamp_seconds " in get("/metrics").text, seconds=60
        )
        assert get("/v2/models/double", token="wrong").status_code == 401
        wait_until(lambda: "\nksrv_error_answers_total{" in get("/metrics").text, seconds=60)
        return get("/metrics").text


def test_every_metric_that_is_named_is_exported(page):
    exported = {line.split("{")[0].split(" ")[0] for line in page.splitlines() if line[0] != "#"}
    for name, where in metric_names().items():
        assert name in exported, (name, where)
