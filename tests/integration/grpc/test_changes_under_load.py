"""A reload and a stop of the server under streams: every running request is answered."""

import queue
import signal
import threading

import grpc
import pytest

from ksrv.protocol.protobuf import INFERENCE, methods
from ksrv.testing import Server
from tests.support.models import write_model
from tests.support.wait_until import wait_until
from tests.support.wire.grpc_calls import row_request

pytestmark = pytest.mark.long

CALL = row_request("counted")
CALL.raw_input_contents[0] = b"\0\0\x80\x3f" * 4
MODEL = """
inputs: [{name: x, datatype: FP32, shape: [-1, 4]}]
outputs: [{name: y, datatype: FP32, shape: [-1, 4]}]
batching: {max_batch_size: 4, max_delay_ms: 1}
"""
HANDLER = """
import os
import time

from ksrv import BaseHandler


class Counted(BaseHandler):
    def inference(self, x):
        time.sleep(0.002)
        with open(%r, "ab", buffering=0) as file:
            os.write(file.fileno(), b"x" * int((x[:, 3] == 1).sum()))  # and none of a warm-up
        return {"y": 2 * x}
"""


class Callers:
    """Threads that send requests over a ModelStreamInfer, one after the other, until they are stopped.

    If the server ends the stream, a new stream is opened, and an unanswered request is sent again.

    Attributes:
        answered: How many requests were answered.
        refused: The codes with which streams ended.
    """

    def __init__(self, address):
        self.answered = 0
        self.refused = set()
        self._address = address
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._call) for _ in range(4)]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._done.set()
        for thread in self._threads:
            thread.join()

    def _call(self):
        request, response = methods(INFERENCE)["ModelStreamInfer"]
        with grpc.insecure_channel(self._address) as channel:
            stub = channel.stream_stream(
                f"/{INFERENCE}/ModelStreamInfer", request.SerializeToString, response.FromString
            )
            while not self._done.is_set():
                asked = queue.SimpleQueue()
                answers = stub(iter(asked.get, None), timeout=100)
                try:
                    while not self._done.is_set():
                        asked.put(CALL)
                        assert not next(answers).error_message
                        with self._lock:
                            self.answered += 1
                except grpc.RpcError as error:
                    self.refused.add(error.code())
                finally:
                    asked.put(None)

    def answer(self, more):
        """Wait for `more` further answers."""
        wanted = self.answered + more
        wait_until(lambda: self.answered >= wanted)


def test_streams_lose_no_answer_at_reloads_and_a_stop(tmp_path):
    ran = tmp_path / "ran"
    ran.touch()
    write_model(tmp_path / "models", "counted", HANDLER % str(ran), MODEL)
    with Server(tmp_path / "models") as server, Callers(server.grpc) as callers:
        callers.answer(40)
        before = server.log.count("models loaded")
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: server.log.count("models loaded") > before)
        callers.answer(40)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
    assert callers.refused == {grpc.StatusCode.UNAVAILABLE}
    assert callers.answered == ran.stat().st_size
