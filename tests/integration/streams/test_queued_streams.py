"""Streams that wait behind a busy instance, and whose clients leave before they are begun."""

import json
import socket
import struct

from ksrv.testing import Server
from tests.support.models import write_model
from tests.support.servers.metrics import metric
from tests.support.wait_until import wait_until

HANDLER = """
import time
from pathlib import Path

from ksrv import BaseHandler


class Held(BaseHandler):
    def inference(self, x):
        here, turn = Path(__file__).parent, int(x[0, 0])
        (here / f"began-{turn}").touch()
        while not (here / "go").exists():
            time.sleep(0.005)
        yield {"y": x}
"""
YAML = """
inputs: [{name: x, datatype: FP32, shape: [-1, 1]}]
outputs: [{name: y, datatype: FP32, shape: [-1, 1]}]
warmup: false
timeout_ms: 600000
"""
WAITING = 'ksrv_pending_requests{model="held",version=""}'
STREAMS = ("text/event-stream", "application/jsonl")


def begin(server: Server, turn: int, accept: str) -> socket.socket:
    """Ask for a stream and return its connection."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [turn]}
    body = json.dumps({"inputs": [tensor]}).encode()
    host, _, port = server.http.rpartition(":")
    client = socket.create_connection((host, int(port)), 60)
    head = f"POST /v2/models/held/infer HTTP/1.1\r\nHost: x\r\nAccept: {accept}\r\nContent-Length: {len(body)}"
    client.sendall(head.encode() + b"\r\n\r\n" + body)
    return client


def leave(client: socket.socket, *, reset: bool) -> None:
    if reset:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def test_a_queued_stream_whose_client_has_left_is_never_begun(tmp_path):
    folder = write_model(tmp_path, "held", HANDLER, YAML)
    with Server(tmp_path) as server:
        first = begin(server, 0, STREAMS[0])
        wait_until((folder / "began-0").exists)
        queued = [begin(server, turn, STREAMS[turn % 2]) for turn in range(1, 5)]
        wait_until(lambda: metric(server, WAITING) == 4)
        for turn, client in enumerate(queued):
            leave(client, reset=turn < 2)
        wait_until(lambda: metric(server, WAITING) == 0)
        (folder / "go").touch()
        last = begin(server, 9, STREAMS[1])
        assert b"200 OK" in last.recv(4096)
        first.close()
        last.close()
    assert {one.name for one in folder.glob("began-*")} == {"began-0", "began-9"}
