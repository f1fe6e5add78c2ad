"""If clients disconnect while their requests wait, the requests are not run and their places become free."""

import contextlib
import json
import socket
import struct
import time

import pytest

from ksrv.testing import Server
from tests.support.models import write_model
from tests.support.native.gunicorn_server import infer_head
from tests.support.servers.metrics import metric
from tests.support.wait_until import wait_until
from tests.support.wire.http_reader import open_connection, read_message

pytestmark = pytest.mark.long

HANDLER = """
import time
from pathlib import Path
from ksrv import BaseHandler

class Handler(BaseHandler):
    def handle(self, batch, context):
        x = batch["x"]
        with Path(__file__).with_name("seen").open("a") as file:
            file.write("".join(f"{value:g} " for value in x[:, 0]))
        while x[0, 0] == 1 and not Path(__file__).with_name("go").exists():
            time.sleep(0.005)
        return {"y": x}
"""

TENSORS = """
inputs: [{name: x, datatype: FP32, shape: [-1, 1]}]
outputs: [{name: y, datatype: FP32, shape: [-1, 1]}]
queue_size: 3
warmup: false
"""


def plain(value):
    """A request that the HTTP server queues itself."""
    entry = {"name": "x", "datatype": "FP32", "shape": [1, 1]}
    entry["parameters"] = {"binary_data_size": 4}
    # Python would have to read a request for an answer in JSON.
    text = json.dumps({"inputs": [entry], "parameters": {"binary_data_output": True}}).encode()
    return infer_head(len(text), len(text) + 4, model="m") + text + struct.pack("<f", value)


def general(value, *fields):
    """A request that Python reads; with an unusual field, gunicorn reads it."""
    entry = {"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [value]}
    text = json.dumps({"inputs": [entry]}).encode()
    return infer_head(None, len(text), *fields, model="m") + text


def handed(value):
    """A request that the HTTP server passes to gunicorn."""
    return general(value, "TE: trailers")


FORMS = [plain, general, handed]


def divided(value):
    """A request of three batches."""
    entry = {"name": "x", "datatype": "FP32", "shape": [3, 1], "data": [value] * 3}
    text = json.dumps({"inputs": [entry]}).encode()
    return infer_head(None, len(text), model="m") + text


def divided_and_handed(value):
    """A request of three batches by way of gunicorn."""
    return divided(value).replace(b"\r\n", b"\r\nTE: trailers\r\n", 1)


def reset(client):
    """Close a connection with a reset, so that the peer notices at once."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


class Held:
    """A server whose only model instance is busy with a request until `release`."""

    def __init__(self, server, folder, first=plain):
        self.server = server
        self.folder = folder
        self.first = first

    def seen(self):
        """The values that the handler received."""
        file = self.folder / "seen"
        return [float(value) for value in file.read_text().split()] if file.exists() else []

    @property
    def waiting(self):
        return metric(self.server, 'ksrv_pending_requests{model="m",version=""}')

    @property
    def cancelled(self):
        series = 'ksrv_requests_total{model="m",outcome="cancelled",version=""}'
        return metric(self.server, series)

    @contextlib.contextmanager
    def busy(self):
        (self.folder / "go").unlink(missing_ok=True)
        (self.folder / "seen").unlink(missing_ok=True)
        with open_connection(self.server.http) as client:
            client.sendall(self.first(1))
            wait_until(lambda: self.seen() == [1])
            try:
                yield
            finally:
                (self.folder / "go").touch()
            assert read_message(client)[0].startswith(b"HTTP/1.1 200 OK")


@pytest.fixture(scope="module", params=["inline", "process"])
def held(request, tmp_path_factory):
    root = tmp_path_factory.mktemp("vanished")
    folder = write_model(root, "m", HANDLER, f"{TENSORS}executor: {request.param}\n")
    with Server(root) as server:
        yield Held(server, folder)


@pytest.mark.parametrize("leave", [socket.socket.close, reset], ids=["closed", "reset"])
@pytest.mark.parametrize("form", FORMS)
def test_request_of_a_vanished_client_is_dropped_unrun(held, form, leave):
    before = held.cancelled
    with held.busy():
        clients = [open_connection(held.server.http) for _ in range(3)]
        for value, client in enumerate(clients, 2):
            client.sendall(form(value))
        wait_until(lambda: held.waiting == 3)
        for client in clients:
            leave(client)
        wait_until(lambda: held.waiting == 0)
        wait_until(lambda: held.cancelled == before + 3)
        with open_connection(held.server.http) as client:
            client.sendall(plain(5))
            wait_until(lambda: held.waiting == 1)
            (held.folder / "go").touch()
            assert read_message(client)[0].startswith(b"HTTP/1.1 200 OK")
    assert held.seen() == [1, 5]


@pytest.mark.parametrize("form", FORMS)
def test_a_client_that_only_stops_sending_gets_its_answer(held, form):
    with held.busy(), open_connection(held.server.http) as client:
        client.sendall(form(2))
        client.shutdown(socket.SHUT_WR)
        interim = b"HTTP/1.1 100 Continue\r\n\r\n"
        received = b""
        while len(received) < len(interim):
            received += client.recv(len(interim) - len(received))
        assert received == interim  # the server checked once whether the client is still there
        time.sleep(0.6)
        (held.folder / "go").touch()
        assert read_message(client)[0].startswith(b"HTTP/1.1 200 OK")
    assert held.seen() == [1, 2]


def leaves(held, form, parts):
    """Send a request while another runs, and disconnect. Return the values that the handler received."""
    before = held.cancelled
    with held.busy():
        with open_connection(held.server.http) as client:
            client.sendall(form(2))
            wait_until(lambda: held.waiting == parts)
        wait_until(lambda: held.waiting == 0)
        wait_until(lambda: held.cancelled == before + 1)
    with open_connection(held.server.http) as client:
        client.sendall(held.first(5))
        assert read_message(client)[0].startswith(b"HTTP/1.1 200 OK")
    return held.seen()


@pytest.mark.parametrize("form", [divided, divided_and_handed])
def test_every_part_of_a_split_request_is_cancelled(tmp_path, form):
    split = "batching: {max_batch_size: 1, max_delay_ms: 0, split: true}\n"
    folder = write_model(tmp_path, "m", HANDLER, TENSORS + split)
    with Server(tmp_path) as server:
        assert leaves(Held(server, folder), form, 3) == [1, 5]
