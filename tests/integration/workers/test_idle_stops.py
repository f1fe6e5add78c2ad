"""SIGTERM, if nobody was connected for the drain delay: the server ends at once.

The delay is ten minutes here: a server that ends within the patience of a test has left it out.
"""

import signal
import ssl
import time

import pytest

from ksrv.testing import Server
from tests.support.certificates import self_signed
from tests.support.wait_until import wait_until
from tests.support.wire.http_reader import open_connection

pytestmark = pytest.mark.long

DELAY = 600
DRAINS = f"draining for {DELAY}.0 s"
ENDS = "ending without the drain delay"


@pytest.fixture
def settings(request, tmp_path):
    """The settings of a kind of server."""
    kinds = {
        "plain": {},
        "workers": {"workers": 2},
        "tls": {},
        "no grpc": {"grpc": "off"},
        "grpcio": {"grpc_server": "grpcio"},
    }
    made = kinds[request.param] | {"drain_delay": DELAY, "wait_ready": False}
    if request.param == "tls":
        key, cert = self_signed(tmp_path)
        made |= {"tls_cert": str(cert), "tls_key": str(key)}
    return made


def stopped_quickly(server):
    """End a server that drains, without its delay."""
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(60) == 0


@pytest.mark.parametrize("settings", ["plain", "workers", "tls", "no grpc"], indirect=True)
def test_a_server_to_which_nobody_has_connected_ends_at_once(repository, settings):
    with Server(repository, **settings) as server:
        wait_until(lambda: server.log.count("models loaded in") == settings.get("workers", 1))
        assert server.terminate() == 0
        log = server.log
    assert ENDS in log and "draining" not in log


@pytest.mark.parametrize("port", ["http", "grpc"])
@pytest.mark.parametrize("settings", ["plain", "tls"], indirect=True)
def test_a_client_that_is_connected_keeps_the_delay(repository, settings, port):
    with Server(repository, **settings) as server:
        server.wait_loaded()
        with open_connection(getattr(server, port), 60) as client:
            if "tls_cert" in settings:  # its answer to the hello shows that it was accepted
                context = ssl.create_default_context(cafile=settings["tls_cert"])
                context.check_hostname = False
                client = context.wrap_socket(client)
            client.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
            assert client.recv(1)
            server.process.send_signal(signal.SIGTERM)
            wait_until(lambda: DRAINS in server.log)
        stopped_quickly(server)


@pytest.mark.parametrize("port", ["http", "grpc"])
@pytest.mark.parametrize("settings", ["plain"], indirect=True)
def test_a_probe_that_has_gone_keeps_the_delay(repository, settings, port):
    """So does a load balancer's: it would call a server that it has not asked again."""
    with Server(repository, **settings) as server:
        server.wait_loaded()
        with open_connection(getattr(server, port), 60) as client:
            client.sendall(b"GET /v2/health/live HTTP/1.0\r\nHost: x\r\n\r\n")
            while client.recv(65536):
                pass
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: DRAINS in server.log)
        stopped_quickly(server)


@pytest.mark.parametrize("settings", ["plain"], indirect=True)
def test_a_client_that_left_longer_ago_than_the_delay_does_not(repository, settings):
    with Server(repository, **settings | {"drain_delay": 0.2}) as server:
        server.wait_loaded()
        assert server.get("/v2/health/live")[0] == 200
        time.sleep(0.5)  # more than the delay, however busy this machine is
        assert server.terminate() == 0
        assert ENDS in server.log


@pytest.mark.parametrize("settings", ["grpcio"], indirect=True)
def test_grpcio_does_not_tell_who_is_connected_so_the_delay_stays(repository, settings):
    with Server(repository, **settings) as server:
        server.wait_loaded()
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: DRAINS in server.log)
        stopped_quickly(server)
