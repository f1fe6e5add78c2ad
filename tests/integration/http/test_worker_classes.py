"""The same app under gunicorn's stock workers, and under the gunicorn command."""

import gzip
import socket
import subprocess
import sys

import numpy as np
import pytest
import requests
import tritonclient.http as triton

from ksrv.testing import Server, ServerFailed
from tests.support.images import files
from tests.support.models import write_all, write_mean
from tests.support.streams import StreamedResponse, pieces, text_request, write_words
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


def test_stock_worker_under_gunicorns_command_infers(repository):
    with GunicornServer(repository, worker_class="sync", stop_timeout=1) as server:
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


def test_unsupported_worker_class_is_refused(repository):
    with pytest.raises(ServerFailed, match=r"'worker_class': gevent serves many requests on one"):
        Server(repository, worker_class="gevent").start()


def test_unsupported_gunicorn_setting_is_refused(repository):
    class Configured(GunicornServer):
        def command(self, settings_file):
            return [*super().command(settings_file), "--permit-obsolete-folding"]

    with pytest.raises(ServerFailed, match="'permit_obsolete_folding' is not honoured"):
        Configured(repository).start()


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
