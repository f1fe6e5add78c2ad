"""A server on a machine without OpenSSL or libnghttp2, which the native core opens when it starts."""

import shutil
import subprocess
from pathlib import Path

import pytest

from ksrv.testing import Server, ServerFailed
from tests.support.certificates import self_signed
from tests.support.faults.callers import addresses
from tests.support.faults.health import assert_answers_exactly
from tests.support.faults.patterns import write_patterns
from tests.support.faults.storms import Load, all_answered
from tests.support.paths import ROOT
from tests.support.processes import children
from tests.support.wire.http_reader import open_connection, read_all

SHIM = ROOT / "tests/support/native/missing_libraries.c"
NGHTTP2, OPENSSL = "libnghttp2.so.14", "libssl.so.3"


@pytest.fixture(scope="module")
def without(tmp_path_factory):
    """Return the environment of a process that does not find libraries."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("cc is not installed")
    library = tmp_path_factory.mktemp("shim") / "missing_libraries.so"
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", SHIM, "-o", library], check=True)
    return lambda *names: {"LD_PRELOAD": str(library), "MISSING_LIBRARIES": ",".join(names)}


@pytest.fixture(scope="module")
def server(without, tmp_path_factory):
    root = write_patterns(tmp_path_factory.mktemp("models"))
    with Server(root, environment=without(NGHTTP2, OPENSSL)) as running:
        yield running


def test_rest_and_grpc_serve_without_libraries(server):
    """gRPC is carried by grpcio."""
    assert_answers_exactly(addresses(server), None)
    with Load(addresses(server), "1") as load:
        load.wait_for(5)
    all_answered(load.ledger)
    for worker in children(server.pid):
        mapped = Path(f"/proc/{worker}/maps").read_text()
        assert "libnghttp2" not in mapped and "cygrpc" in mapped


def test_the_http_address_speaks_http1_alone(server):
    with open_connection(server.http, 60) as client:
        client.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
        answer = read_all(client)
    assert answer.endswith(b"REST over HTTP/1.1 only; gRPC has a separate address"), (
        answer
    )  # GOAWAY
    assert server.get("/v2/health/ready")[0] == 200


def test_required_native_grpc_names_missing_library(without, tmp_path):
    with pytest.raises(ServerFailed, match=NGHTTP2):  # noqa: SIM117 - the start is what fails
        with Server(write_patterns(tmp_path), environment=without(NGHTTP2), grpc_server="native"):
            pass


def test_required_tls_names_missing_library(without, tmp_path):
    key, certificate = self_signed(tmp_path)
    root = write_patterns(tmp_path / "models")
    tls = {"tls_cert": str(certificate), "tls_key": str(key)}
    with pytest.raises(ServerFailed, match="OpenSSL"):  # noqa: SIM117 - the start is what fails
        with Server(root, environment=without(OPENSSL), **tls):
            pass
