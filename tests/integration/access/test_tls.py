"""TLS on both front ends: whose certificates count, renewal, and files that cannot be used."""

import os
import re
import signal
import socket
import ssl
import time

import grpc
import numpy as np
import pytest
import requests
from tritonclient import grpc as triton

from ksrv.testing import Server, ServerFailed
from tests.support.certificates import self_signed, short_lived
from tests.support.models import DOUBLE, VECTOR, write_model
from tests.support.processes import children
from tests.support.wait_until import wait_until
from tests.support.wire.http_reader import double_body, read_all


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificates")
    return {name: self_signed(folder, name) for name in ("server", "client", "other")}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    write_model(folder, "double", DOUBLE, VECTOR)
    return folder


def settings(files, **more):
    key, cert = files["server"]
    return {"tls_cert": str(cert), "tls_key": str(key)} | more


def over_rest(server, trusted, **options):
    url = f"{server.url}/v2/models/double/infer"
    answer = requests.post(url, double_body(), verify=str(trusted), timeout=30, **options)
    return answer.json()["outputs"][0]["data"]


def over_grpc(server, trusted, client=(None, None)):
    key, cert = client
    with triton.InferenceServerClient(
        server.grpc, ssl=True, root_certificates=str(trusted),
        private_key=key and str(key), certificate_chain=cert and str(cert),
    ) as client:  # fmt: skip
        tensor = triton.InferInput("x", [1, 4], "FP32")
        tensor.set_data_from_numpy(np.array([[1, 2, 3, 4]], np.float32))
        return client.infer("double", [tensor]).as_numpy("y").ravel().tolist()


def test_both_front_ends_speak_tls_and_nothing_else(models, files):
    _, cert = files["server"]
    with Server(models, **settings(files)) as server:
        assert over_rest(server, cert) == over_grpc(server, cert) == [2, 4, 6, 8]
        page = requests.get(f"{server.url}/metrics", verify=str(cert), timeout=30).text
        ends = re.search(r"^ksrv_certificate_expiry_timestamp_seconds (\S+)$", page, re.M)
        assert 0 < float(ends[1]) - time.time() < 86_400
        with pytest.raises(requests.exceptions.SSLError):
            over_rest(server, files["other"][1])
        with pytest.raises(triton.InferenceServerException, match="UNAVAILABLE"):
            over_grpc(server, files["other"][1])
        with pytest.raises(requests.exceptions.RequestException):
            requests.get(f"http://{server.http}/v2/health/live", timeout=30).raise_for_status()
        with grpc.insecure_channel(server.grpc) as channel, pytest.raises(grpc.RpcError):
            channel.unary_unary("/inference.GRPCInferenceService/ServerLive")(b"", timeout=30)
        for address in (server.http, server.grpc):
            with pytest.raises(OSError):
                handshake(address, ssl.TLSVersion.TLSv1_1)
            assert handshake(address, ssl.TLSVersion.TLSv1_2) == "TLSv1.2"


def handshake(address, version):
    """Connect with a version of TLS and no other."""
    host, _, port = address.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = version
    with socket.create_connection((host, int(port)), 30) as plain:
        return context.wrap_socket(plain).version()


def test_clients_without_a_required_certificate_are_refused(models, files):
    _, cert = files["server"]
    wanted = settings(files, tls_client_ca=str(files["client"][1]))
    # Whoever has no certificate is a stranger, so that no token is needed beyond loopback.
    with Server(models, http="0.0.0.0:0", grpc="0.0.0.0:0", **wanted) as server:
        server.http = server.http.replace("0.0.0.0", "127.0.0.1")
        server.grpc = server.grpc.replace("0.0.0.0", "127.0.0.1")
        key, chain = files["client"]
        assert over_rest(server, cert, cert=(str(chain), str(key))) == [2, 4, 6, 8]
        assert over_grpc(server, cert, files["client"]) == [2, 4, 6, 8]
        for stranger in (None, tuple(map(str, reversed(files["other"])))):
            with pytest.raises(requests.exceptions.RequestException):
                over_rest(server, cert, cert=stranger)
        for stranger in ((None, None), files["other"]):
            with pytest.raises(triton.InferenceServerException, match="UNAVAILABLE"):
                over_grpc(server, cert, stranger)


def serves(ask, server, cert):
    try:
        return ask(server, cert) == [2, 4, 6, 8]
    except (requests.exceptions.RequestException, triton.InferenceServerException):
        return False


def test_session_ticket_ends_with_the_certificate_of_its_client(models, files, tmp_path):
    key, cert = short_lived(tmp_path, seconds=10)
    with Server(models, **settings(files, tls_client_ca=str(cert))) as server:
        context = ssl.create_default_context(cafile=files["server"][1])
        context.maximum_version = ssl.TLSVersion.TLSv1_2  # its tickets come before the answer
        context.load_cert_chain(cert, key)
        host, _, port = server.http.rpartition(":")
        session = None

        def ask():
            """Make a request, with the session of the previous request; return whether the session was resumed."""
            nonlocal session
            with (
                socket.create_connection((host, int(port)), timeout=60) as plain,
                context.wrap_socket(plain, server_hostname=host, session=session) as connection,
            ):
                connection.sendall(
                    b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
                )
                assert b" 200 " in read_all(connection).splitlines()[0]
                session = connection.session
                return connection.session_reused

        assert ask() is False
        assert ask() is True

        def is_refused():
            try:
                ask()
            except (ssl.SSLError, ConnectionError):
                return True
            return False

        wait_until(is_refused)


def test_reload_uses_renewed_files_or_keeps_the_old_files(models, tmp_path):
    key, cert = self_signed(tmp_path, "served")
    asked = [over_rest, over_grpc]
    with Server(models, tls_cert=str(cert), tls_key=str(key), stop_timeout=0) as server:
        old = tmp_path / "old.pem"
        old.write_bytes(cert.read_bytes())

        def assert_serves_the_old_one():
            assert all(ask(server, old) == [2, 4, 6, 8] for ask in asked)

        key.write_text("no key")
        cert.write_text("no certificate")
        assert_serves_the_old_one()
        workers = children(server.pid)
        os.kill(server.pid, signal.SIGHUP)
        wait_until(lambda: "the reload is refused" in server.log)
        assert "TLS: " in server.log
        assert_serves_the_old_one()
        assert children(server.pid) == workers
        cert.unlink()
        for worker in workers:
            os.kill(worker, signal.SIGKILL)
        wait_until(lambda: server.log.count("ready: True") == 2)
        assert_serves_the_old_one()
        self_signed(tmp_path, "served")
        os.kill(server.pid, signal.SIGHUP)
        wait_until(lambda: all(serves(ask, server, cert) for ask in asked))
        wait_until(lambda: not any(serves(ask, server, old) for ask in asked))


def test_unusable_files_are_reported_before_the_server_listens(models, files):
    given = settings(files, tls_key=str(files["other"][0]))
    with pytest.raises(
        ServerFailed, match=r"TLS: .*server\.pem and .*other\.key cannot be used"
    ) as told:
        Server(models, **given).start()
    assert "HTTP  " not in str(told.value)
