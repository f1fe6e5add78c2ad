"""With TLS the HTTP server is left away: the worker is a plain threaded one, says so, and serves the same."""

import socket
import ssl
import time

import pytest

from tests.support.certificates import self_signed
from tests.support.native.gunicorn_server import GunicornServer, infer
from tests.support.wire.http_reader import read_message


@pytest.fixture
def certificate(tmp_path):
    return self_signed(tmp_path)


class TlsServer(GunicornServer):
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


def test_tls_is_served_without_the_http_server(tmp_path, certificate):
    with TlsServer(tmp_path / "server", *certificate) as server, server.connect() as client:
        for _ in range(2):
            client.sendall(infer(16))
            head, body, _ = read_message(client)
            assert head.startswith(b"HTTP/1.1 200 OK")
            assert body.endswith(bytes(range(64)))
            time.sleep(0.05)
        assert "serving as a plain threaded worker: TLS is configured" in server.log
