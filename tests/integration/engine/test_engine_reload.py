"""Loads, reloads and unloads of real models while clients send; and what is left afterwards."""

import gc
import os
import threading
import time
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from ksrv._native.memory import buffer_pool, memory_budget
from ksrv._native.queue import request_queue as queue
from ksrv.engine.engine import Engine, EngineSettings
from ksrv.errors import KsrvError
from ksrv.repository.layout import Repository
from ksrv.request import InferRequest, Tensor
from tests.support.wait_until import wait_until

MODEL = """
handler: handler.py
inputs:
  - {name: x, datatype: FP32, shape: [-1, 4]}
outputs:
  - {name: y, datatype: FP32, shape: [-1, 4]}
batching: {max_batch_size: 8}
queue_size: 1000
"""

HANDLER = """
from ksrv import BaseHandler

class Handler(BaseHandler):
    def inference(self, x):
        return x + ADDED
"""


def write(folder, added, model=MODEL):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.yaml").write_text(model)
    (folder / "handler.py").write_text(HANDLER.replace("ADDED", str(added)))


@contextmanager
def engine(folder, **settings):
    served = Engine(Repository([folder]), EngineSettings(**settings))
    served.start()
    try:
        yield served
    finally:
        served.close(20)


def request(value, model="m", rows=1, **fields):
    data = np.full((rows, 4), value, np.float32)
    return InferRequest(model, inputs=[Tensor("x", "FP32", data.shape, data)], **fields)


def answer(served, value=0.0, **fields):
    return float(
        served.submit(request(value, **fields), caller_blocks=True).wait().outputs[0].data[0, 0]
    )


class Clients:
    """Threads that send without a pause, each answer checked against what versions add."""

    def __init__(self, served, added, count=4):
        self.served = served
        self.added = set(added)
        self.failures = []
        self.answered = 0
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._send, args=(n,)) for n in range(count)]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_error):
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _send(self, number):
        sent = 0
        while not self._stop.is_set():
            value = number * 10_000 + sent % 5000
            sent += 1
            try:
                data = (
                    self.served.submit(request(value, rows=1 + sent % 3), caller_blocks=True)
                    .wait()
                    .outputs[0]
                    .data
                )
            except KsrvError as error:
                self.failures.append(error)
                continue
            added = data - value
            if added.min() != added.max() or float(added[0, 0]) not in self.added:
                self.failures.append(data)
            self.answered += 1


def test_replaced_model_is_freed(tmp_path):
    def queues():
        gc.collect()
        return sum(isinstance(one, queue.Queue) for one in gc.get_objects())

    def threads():
        return sum(thread.name.startswith("ksrv-freed-") for thread in threading.enumerate())

    before = queues()  # of other tests of the process
    write(tmp_path / "freed", 0)
    with engine(tmp_path) as served:
        served.load("freed")
        wait_until(lambda: threads() == 2)
        for _ in range(5):
            served.load("freed")
            answer(served, model="freed")
        # An instance and a prefetcher, however often it was loaded.
        wait_until(lambda: threads() == 2)
        wait_until(lambda: queues() <= before + 2)
    wait_until(lambda: threads() == 0)


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def resident():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def soak(folder, seconds):
    """Load, cancel, expire and reload in three rounds; return by how many bytes each round has grown.

    A leak grows in every round; memory that a heap keeps or gives back does not.
    """
    write(folder / "m", 0)
    with engine(folder) as served:

        def stir(round_number):
            with Clients(served, range(1000)) as clients:
                end = time.monotonic() + seconds / 4
                while time.monotonic() < end or not clients.answered:
                    handles = [served.submit(request(1.0, rows=8)) for _ in range(20)]
                    for handle in handles[::2]:
                        handle.cancel()
                    late = time.monotonic_ns() + 200_000
                    with suppress(KsrvError):
                        handles.append(served.submit(request(1.0, deadline_ns=late)))
                    for handle in handles:
                        handle.join()
                    del handles
                served.load("m")
            assert not clients.failures
            wait_until(lambda: memory_budget.PROCESS.held == 0)
            gc.collect()
            buffer_pool.trim()

        stir(0)
        held, opened = [resident()], descriptors()
        for number in range(1, 4):
            stir(number)
            held.append(resident())
        wait_until(lambda: descriptors() <= opened)
        return [later - earlier for earlier, later in pairwise(held)]


def test_a_short_soak_leaves_nothing_behind(tmp_path):
    grown = soak(tmp_path, 2)
    assert min(grown) < 7_000_000, grown


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_long_soak_leaves_nothing_behind(tmp_path):
    grown = soak(tmp_path, 600)
    assert min(grown) < 3_000_000, grown
