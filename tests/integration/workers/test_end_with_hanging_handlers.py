"""A server that is stopped while a handler hangs ends by itself, and none of its workers is aborted.

The handler's module has an object whose finalizer takes its time, as the end of a large library does:
its thread asks for the GIL meanwhile.
"""

import signal

import pytest

from ksrv.testing import Server
from tests.support.models import write_model
from tests.support.native.gunicorn_server import infer
from tests.support.wait_until import wait_until
from tests.support.wire.http_reader import open_connection

HANDLER = """
import time
from pathlib import Path

import torch
from ksrv import BaseHandler

class Slow:
    def __del__(self, sleep=time.sleep):
        sleep(0.5)

slow = Slow()

class Handler(BaseHandler):
    def inference(self, x):
        matrix = torch.rand(64, 64)
        Path(__file__).with_name("entered").touch()
        while True:
            torch.mm(matrix, matrix)
"""
TENSORS = "inputs: [{name: x, datatype: FP32, shape: [-1, 4]}]\nwarmup: false\ntimeout_ms: 300\n"


def test_a_handler_that_hangs_aborts_no_worker(tmp_path):
    pytest.importorskip("torch")
    folder = write_model(tmp_path, "m", HANDLER, TENSORS)
    with Server(tmp_path, stop_timeout=1) as server, open_connection(server.http) as client:
        client.sendall(infer(4, model="m"))
        wait_until((folder / "entered").exists)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
        assert "was sent SIGABRT" not in server.log
        assert "still run their handlers after --stop-timeout" in server.log
