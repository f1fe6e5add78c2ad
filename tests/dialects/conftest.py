"""The server of the integration tests, for the tests of dialects that talk to it, and a client of a file's server."""

import pytest

from ksrv.client import Client
from tests.integration.conftest import repository, server

__all__ = ["repository", "server"]


@pytest.fixture(scope="module")
def client(server):
    with Client(server.url) as made:
        yield made
