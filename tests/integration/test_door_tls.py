"""TLS is gunicorn's: the worker is then a plain threaded worker, says so, and serves the same."""

import shutil
import socket
import ssl
import subprocess
import time

import pytest

from tests.integration.door_server import DoorServer, infer, read_answer


@pytest.fixture
def certificate(tmp_path):
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert,
         "-days", "1", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    return key, cert


class TlsServer(DoorServer):
    """A server that is up once it completes a handshake."""

    def __init__(self, folder, key, cert):
        self.context = ssl.create_default_context(cafile=cert)
        super().__init__(folder, keyfile=str(key), certfile=str(cert))

    def connect(self, timeout=20):
        plain = socket.create_connection(self.address, timeout=timeout)
        try:
            return self.context.wrap_socket(plain, server_hostname="127.0.0.1")
        except OSError:
            plain.close()
            raise


def test_tls_is_served_without_the_door(tmp_path, certificate):
    with TlsServer(tmp_path / "server", *certificate) as server, server.connect() as client:
        for _ in range(2):
            client.sendall(infer(16))
            head, body, _ = read_answer(client)
            assert head.startswith(b"HTTP/1.1 200 OK")
            assert body.endswith(bytes(range(64)))
            time.sleep(0.05)
        assert "serving as a plain threaded worker: TLS is configured" in server.log
