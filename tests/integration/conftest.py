"""The server that most integration tests talk to: one process for the whole run."""

import socket

import pytest

from ksrv.testing import Server
from tests.support.models import write_all


@pytest.fixture(scope="session")
def repository(tmp_path_factory):
    return write_all(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def server(repository):
    with Server(repository) as running:
        yield running


@pytest.fixture
def connect(server):
    """Open sockets to the server's HTTP port; they are closed behind the test."""
    opened = []

    def open_socket(address=None):
        host, port = (address or server.http).rsplit(":", 1)
        opened.append(socket.create_connection((host, int(port)), timeout=30))
        return opened[-1]

    yield open_socket
    for connection in opened:
        connection.close()
