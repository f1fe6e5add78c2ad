"""The same app under gunicorn's stock workers, and under the gunicorn command."""

import gzip
import os
import signal
import socket
import subprocess
import sys
import time

import grpc
import numpy as np
import pytest
import requests
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton

from ksrv.testing import Server, ServerFailed
from tests.support.images import files
from tests.support.models import write_all, write_mean
from tests.support.streams import StreamedResponse, pieces, text_request, write_words
from tests.support.wait_until import wait_until
from tests.support.wire.http_reader import double_body

pytestmark = pytest.mark.long


class GunicornServer(Server):
    """Starts `gunicorn -c python:ksrv.server.gunicorn` instead of `ksrv serve`."""

    def command(self, settings_file):
        self._environment |= {
            "KSRV_CONFIG": str(settings_file),
            "KSRV_MODELS": ":".join(self.targets),
        }
        return [sys.executable, "-m", "gunicorn", "-c", "python:ksrv.server.gunicorn"]


@pytest.fixture(scope="module")
def stock(tmp_path_factory):
    folder = write_all(tmp_path_factory.mktemp("stock"))
    write_mean(folder)
    write_words(folder)
    with Server(folder, worker_class="gthread", limits={"body": "4M"}) as server:
        yield server


def post(server, model, data, **more):
    return requests.post(f"{server.url}/v2/models/{model}/infer", data=data, timeout=30, **more)


@pytest.mark.parametrize("worker_class", ["gthread", "sync"])
def test_stock_worker_under_gunicorns_command_infers(repository, worker_class):
    with GunicornServer(repository, worker_class=worker_class, stop_timeout=1) as server:
        assert post(server, "double", double_body()).status_code == 200


@pytest.mark.parametrize("chunked", [False, True])
def test_stock_worker_takes_json_plain_and_compressed(stock, chunked):
    for body, headers in (
        (double_body(), {}),
        (gzip.compress(double_body()), {"Content-Encoding": "gzip"}),
    ):
        answer = post(stock, "double", iter([body]) if chunked else body, headers=headers)
        assert answer.status_code == 200, answer.text


def test_stock_worker_takes_binary_tensors(stock):
    values = np.random.default_rng(2).random((1, 600_000), dtype=np.float32)
    client = triton.InferenceServerClient(stock.http)
    tensor = triton.InferInput("x", list(values.shape), "FP32")
    tensor.set_data_from_numpy(values)
    np.testing.assert_array_equal(client.infer("echo", [tensor]).as_numpy("y"), values)
    client.close()


def test_stock_worker_decodes_jpegs(stock):
    answer = post(stock, "mean", files.jpeg(60, 90, seed=1), headers={"Content-Type": "image/jpeg"})
    assert answer.status_code == 200, answer.text
    assert answer.json()["outputs"][0]["shape"] == [1, 3]


def test_stock_worker_streams(stock):
    with StreamedResponse(stock, "/v2/models/words/infer", text_request("a b")) as answer:
        assert pieces(document for _, document in answer.events()) == ["a ", "b "]


@pytest.mark.parametrize(
    ("model", "body", "headers", "status"),
    [
        ("double", b"{", {}, 400),
        ("double", bytes(5 << 20), {}, 413),
        ("double", iter([bytes(1 << 20)] * 5), {"Inference-Header-Content-Length": "2"}, 413),
        ("double", b"x", {"Content-Encoding": "gzip"}, 400),
        ("double", b"x", {"Content-Encoding": "br"}, 415),
    ],
)
def test_stock_worker_refuses_with_cause(stock, model, body, headers, status):
    answer = post(stock, model, body, headers=headers)
    assert (answer.status_code, "error" in answer.json()) == (status, True)


def test_stock_worker_refuses_a_malformed_chunk(stock):
    host, port = stock.http.split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(
            b"POST /v2/models/double/infer HTTP/1.1\r\nHost: localhost\r\n"
            b"Transfer-Encoding: chunked\r\n\r\nno size\r\n"
        )
        assert connection.recv(100).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("kind", [Server, GunicornServer])
def test_unsupported_worker_class_is_refused(repository, kind):
    with pytest.raises(ServerFailed, match=r"'worker_class': gevent serves many requests on one"):
        kind(repository, worker_class="gevent").start()


@pytest.mark.parametrize(
    ("option", "told"),
    [
        (["--permit-obsolete-folding"], "permit_obsolete_folding"),
        (["--http-protocols", "h2,h1"], "http_protocols"),
    ],
)
def test_unsupported_gunicorn_setting_is_refused(repository, option, told):
    class Configured(GunicornServer):
        def command(self, settings_file):
            return [*super().command(settings_file), *option]

    with pytest.raises(ServerFailed, match=f"gunicorn's setting '{told}' is not honoured"):
        Configured(repository).start()


HOOKED = """
from ksrv.server.gunicorn import *


def pre_request(worker, req):
    pass
"""


def test_unsupported_hook_is_refused(repository, tmp_path):
    (tmp_path / "hooked.py").write_text(HOOKED)

    class Hooked(GunicornServer):
        def command(self, settings_file):
            return [*super().command(settings_file)[:-1], str(tmp_path / "hooked.py")]

    with pytest.raises(ServerFailed, match="gunicorn's setting 'pre_request' is not honoured"):
        Hooked(repository).start()


def test_the_python_parser_is_used_whatever_the_command_says(repository):
    class Laxer(GunicornServer):
        def command(self, settings_file):
            return [*super().command(settings_file), "--http-parser", "auto", "--preload"]

    with Laxer(repository, grpc="off", log_level="debug") as server:
        folded = b"GET /v2 HTTP/1.1\r\nHost: a\r\nX-A: b\r\n c\r\n\r\n"
        host, port = server.http.split(":")
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(folded)
            assert connection.recv(100).startswith(b"HTTP/1.1 400 ")


def test_wide_addresses_of_the_gunicorn_command_are_refused(repository):
    done = subprocess.run(
        [sys.executable, "-m", "gunicorn", "-c", "python:ksrv.server.gunicorn", "-b", "0.0.0.0:0"],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path), "KSRV_GRPC": "off",
             "KSRV_MODELS": str(repository)},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode != 0
    assert "--insecure" in done.stderr


def test_two_workers_share_both_ports(repository):
    with Server(repository, workers=2) as server:
        values = np.ones((1, 4), np.float32)
        for _ in range(10):
            with triton_grpc.InferenceServerClient(server.grpc) as client:
                tensor = triton_grpc.InferInput("x", [1, 4], "FP32")
                tensor.set_data_from_numpy(values)
                np.testing.assert_array_equal(
                    client.infer("double", [tensor]).as_numpy("y"), 2 * values
                )
            assert requests.get(f"{server.url}/v2/health/ready").status_code == 200


def test_http_off_serves_only_grpc(repository):
    with Server(repository, http="off") as server:
        assert server.http == ""
        with grpc.insecure_channel(server.grpc) as channel:
            # nothing else reports here that gRPC is ready
            grpc.channel_ready_future(channel).result(timeout=30)
        with triton_grpc.InferenceServerClient(server.grpc) as client:
            assert client.is_server_ready()
    with Server(repository, grpc="off") as server:
        assert server.grpc == ""
        assert server.get("/v2/health/ready")[0] == 200


def test_a_grpc_port_stays_the_same_over_a_reload(repository):
    with Server(repository, drain_delay=0, stop_timeout=2) as server:
        os.kill(server.pid, signal.SIGHUP)
        while server.log.count("ready: True") < 2:
            time.sleep(0.02)
        while "Worker exiting" not in server.log:
            time.sleep(0.02)
        with triton_grpc.InferenceServerClient(server.grpc) as client:
            assert client.is_server_ready()


def test_unix_sockets_and_ipv6_are_served(repository, tmp_path):
    path = tmp_path / "http.sock"
    with Server(repository, http=f"unix:{path}", grpc="off", wait_ready=False) as server:
        wait_until(lambda: "models loaded" in server.log, tell=lambda: server.log)
        done = subprocess.run(
            ["curl", "-sS", "--unix-socket", str(path), "http://ksrv/v2/models/double/ready"],
            capture_output=True, text=True, check=True, timeout=30,
        )  # fmt: skip
        assert '"ready":true' in done.stdout
    with Server(repository, http="[::1]:0", grpc="[::1]:0") as server:
        assert server.http.startswith("[::1]:")
        assert server.get("/v2")[0] == 200
