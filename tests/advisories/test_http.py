"""Attacks over HTTP/1.1: framing, heads, compressed bodies, forms."""

import json
import re
import socket

import pytest

from ksrv.testing import Server
from tests.advisories.attacks import HTTP, Attack
from tests.advisories.conftest import unharmed
from tests.support.error_texts import check_text
from tests.support.wire.http_reader import open_connection, read_all

pytestmark = pytest.mark.long

PATH = "/v2/models/double/infer"


def send(server: Server, content: bytes) -> bytes:
    """Send bytes and the end of the connection, and return what the server answers."""
    with open_connection(server.http) as connection:
        try:
            connection.sendall(content)
            connection.shutdown(socket.SHUT_WR)
        except OSError:  # the server has answered and closed the connection
            pass
        return read_all(connection)


def statuses(received: bytes) -> list[int]:
    found = map(int, re.findall(rb"(?:^|\r\n\r\n|\})HTTP/1\.1 (\d+) ", received))
    return [status for status in found if status != 100]


def last_error(received: bytes) -> str:
    """The error in ksrv's form or in TorchServe's."""
    document = json.loads(received.rpartition(b"\r\n\r\n")[2])
    return str(document.get("error") or document["message"])


@pytest.mark.parametrize("attack", HTTP, ids=lambda attack: attack.numbers)
def test_attack_gets_an_error_that_names_the_cause(server: Server, attack: Attack) -> None:
    with unharmed(server) as answers:
        answers.append(received := send(server, attack.made(PATH)))
        assert statuses(received) == list(attack.statuses), received[:500]
        check_text(error := last_error(received))
        assert attack.said in error


@pytest.mark.parametrize("attack", HTTP, ids=lambda attack: attack.numbers)
def test_stock_worker_refuses_the_attack(stock: Server, attack: Attack) -> None:
    """gunicorn's parser refuses some heads with texts of gunicorn."""
    with unharmed(stock) as answers:
        answers.append(received := send(stock, attack.made(PATH)))
        found = statuses(received)
        assert len(found) == len(attack.statuses)
        assert all(400 <= status < 500 or status == 501 for status in found)
