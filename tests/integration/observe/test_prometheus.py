"""The metrics page as Prometheus scrapes it, as text and in its binary form."""

import shutil
import socket
import subprocess

import pytest
import requests

from ksrv.testing import Server
from tests.support.models import write_double
from tests.support.wait_until import wait_until
from tests.support.wire.http_reader import double_body

BINARY = (
    "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"
)
ACCEPTS = f"{BINARY};q=0.6,application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.3"

CONFIGURATION = """
global: {{scrape_interval: 1s}}
scrape_configs:
  - job_name: ksrv
    static_configs: [{{targets: ["{address}"]}}]
"""


@pytest.fixture
def server(tmp_path):
    write_double(tmp_path / "models")
    with Server(tmp_path / "models") as running:
        for _ in range(50):
            url = f"{running.url}/v2/models/double/infer"
            assert requests.post(url, data=double_body(), timeout=60).status_code == 200
        yield running


def test_the_form_of_the_page_follows_the_header(server):
    text = requests.get(f"{server.url}/metrics", timeout=60)
    assert text.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert text.headers["Vary"] == "Accept"
    assert b"ksrv_request_duration_seconds_bucket" in text.content
    binary = requests.get(f"{server.url}/metrics", headers={"Accept": ACCEPTS}, timeout=60)
    assert binary.headers["Content-Type"].replace(" ", "") == BINARY
    assert b"ksrv_request_duration_seconds" in binary.content
    assert b"# TYPE" not in binary.content


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="no prometheus on this machine")
def test_prometheus_reads_the_native_histograms(server, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (tmp_path / "prometheus.yml").write_text(CONFIGURATION.format(address=server.http))
    command = [
        "prometheus",
        f"--config.file={tmp_path / 'prometheus.yml'}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--enable-feature=native-histograms",
    ]

    def value(query):
        try:
            answer = requests.get(
                f"http://127.0.0.1:{port}/api/v1/query", params={"query": query}, timeout=60
            )
        except requests.ConnectionError:
            return None
        if answer.status_code != 200:  # it still starts
            return None
        found = answer.json()["data"]["result"]
        return float(found[0]["value"][1]) if found else None

    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            count = "histogram_count(ksrv_request_duration_seconds)"
            wait_until(lambda: value(count) == 50, tell=(tmp_path / "log").read_text)
            quantile = "histogram_quantile(0.5, ksrv_request_duration_seconds)"
            average = "histogram_sum(ksrv_request_duration_seconds) / 50"
            assert 0 < value(quantile) < 50 * value(average)
            assert value('ksrv_requests_total{outcome="success"}') == 50
            assert value("process_resident_memory_bytes") > 0
        finally:
            process.terminate()
            process.wait(60)
