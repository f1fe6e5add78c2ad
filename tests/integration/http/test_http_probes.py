"""The server gives the required answers to every case of `tests.support.wire.http_probes`."""

import json
import socket

import pytest

from ksrv.testing import Server
from tests.support.models import write_double
from tests.support.wire.http_probes import GOOD, PROBES, answers
from tests.support.wire.http_reader import open_connection, read_all


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    write_double(folder)
    with Server(folder, grpc="off") as running:
        yield running


@pytest.mark.parametrize("probe", PROBES.values(), ids=PROBES)
def test_message_gets_the_required_answers(server, probe):
    with open_connection(server.http, 60) as client:
        client.sendall(probe.message + GOOD)
        client.shutdown(socket.SHUT_WR)
        statuses, head, body = answers(read_all(client))
    assert statuses == probe.statuses, probe.section
    if len(statuses) == 1:  # a refused message, or a message that asks for it, ends the connection
        assert b"Connection: close" in head
    if statuses[-1] >= 400:
        assert json.loads(body)["error"]
