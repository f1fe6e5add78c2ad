"""Stops, and reloads of the server and of a model, under load: running calls are answered, and no other call fails."""

import queue
import signal
import threading
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from ksrv.protocol.protobuf import INFERENCE, methods
from ksrv.testing import Server
from tests.support.certificates import self_signed
from tests.support.wait_until import wait_until
from tests.support.wire.grpc_calls import call, infer_request, stub_infer

pytestmark = pytest.mark.long

ROW = np.arange(4, dtype=np.float32)
CALL = infer_request("counted", ("x", "FP32", [1, 4]), raw=[ROW.tobytes()])
MODEL = """
handler: handler.py
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
            os.write(file.fileno(), b"x" * int((x[:, 3] == 3).sum()))  # and none of a warm-up
        return {"y": 2 * x}
"""


class Callers:
    """Threads that call until they are stopped or, without streams, until the server is gone.

    Args:
        address: The server's.
        cert: The server's certificate, or None without TLS.
        streams: Whether each thread sends its requests over a ModelStreamInfer, one after the
            other. If the server ends the stream, a new stream is opened, and an unanswered request
            is sent again.

    Attributes:
        answered: How many calls were answered.
        refused: The errors of all other calls.
    """

    def __init__(self, address: str, cert: Path | None, *, streams: bool = False) -> None:
        self.answered = 0
        self.refused: list[grpc.RpcError] = []
        self._trusted = cert and grpc.ssl_channel_credentials(cert.read_bytes())
        self._address = address
        self._streams = streams
        self._done = threading.Event()
        self._lock = threading.Lock()
        work = self._stream if streams else self._work
        self._threads = [threading.Thread(target=work) for _ in range(4)]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._done.set()
        self.join()

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def channel(self):
        if self._trusted is None:
            return grpc.insecure_channel(self._address)
        return grpc.secure_channel(self._address, self._trusted)

    def _work(self) -> None:
        with self.channel() as channel:
            infer = stub_infer(channel)
            while not self._done.is_set():
                try:
                    answer = infer(CALL, timeout=60)
                except grpc.RpcError as error:
                    with self._lock:
                        self.refused.append(error)
                    return
                assert np.frombuffer(answer.raw_output_contents[0], np.float32)[3] == 6
                with self._lock:
                    self.answered += 1

    def _stream(self) -> None:
        request, response = methods(INFERENCE)["ModelStreamInfer"]
        with self.channel() as channel:
            stub = channel.stream_stream(
                f"/{INFERENCE}/ModelStreamInfer", request.SerializeToString, response.FromString
            )
            while not self._done.is_set():
                asked: queue.SimpleQueue[Any] = queue.SimpleQueue()
                answers = stub(iter(asked.get, None), timeout=100)
                try:
                    while not self._done.is_set():
                        asked.put(CALL)
                        answer = next(answers)
                        assert not answer.error_message
                        with self._lock:
                            self.answered += 1
                    asked.put(None)
                    assert list(answers) == []
                except StopIteration:
                    pass  # the server ended the stream
                except grpc.RpcError as error:
                    with self._lock:
                        self.refused.append(error)
                finally:
                    asked.put(None)

    def answer(self, more: int) -> None:
        """Wait for `more` further answers."""
        wanted = self.answered + more
        wait_until(lambda: self.answered >= wanted or (self.refused and not self._streams))


@pytest.fixture(params=["plain", "tls"])
def served(request, tmp_path):
    """A server, its certificate or None, and a file that grows by a byte for each row that the model runs."""
    ran = tmp_path / "ran"
    ran.touch()
    model = tmp_path / "models" / "counted"
    model.mkdir(parents=True)
    (model / "model.yaml").write_text(MODEL)
    (model / "handler.py").write_text(HANDLER % str(ran))
    settings, cert = {}, None
    if request.param == "tls":
        key, cert = self_signed(tmp_path)
        settings = {"tls_cert": str(cert), "tls_key": str(key)}
    with Server(model.parent, **settings) as server:
        yield server, cert, ran


def test_stop_answers_every_running_call(served):
    server, cert, ran = served
    with Callers(server.grpc, cert) as callers:
        callers.answer(40)
        server.process.send_signal(signal.SIGTERM)
        callers.join()
        assert server.process.wait(60) == 0
    assert {error.code() for error in callers.refused} == {grpc.StatusCode.UNAVAILABLE}
    assert callers.answered == ran.stat().st_size


def test_reloads_lose_no_call(served):
    server, cert, ran = served
    with Callers(server.grpc, cert) as callers:
        for _ in range(2):
            callers.answer(40)
            before = server.log.count("models loaded")
            server.process.send_signal(signal.SIGHUP)
            wait_until(lambda: server.log.count("models loaded") > before)  # noqa: B023
        callers.answer(40)
    assert not callers.refused
    assert callers.answered == ran.stat().st_size


def test_loads_of_a_model_lose_no_call(served):
    server, cert, ran = served
    with Callers(server.grpc, cert) as callers, callers.channel() as channel:
        for _ in range(4):
            callers.answer(40)
            call(channel, "RepositoryModelLoad", model_name="counted")
        callers.answer(40)
    assert not callers.refused
    assert callers.answered == ran.stat().st_size


def test_streams_lose_no_answer_at_reloads_and_a_stop(served):
    """A reload or a stop ends the stream, but every running request is answered."""
    server, cert, ran = served
    with Callers(server.grpc, cert, streams=True) as callers:
        callers.answer(40)
        before = server.log.count("models loaded")
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: server.log.count("models loaded") > before)
        callers.answer(40)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
    assert {error.code() for error in callers.refused} == {grpc.StatusCode.UNAVAILABLE}
    assert callers.answered == ran.stat().st_size
