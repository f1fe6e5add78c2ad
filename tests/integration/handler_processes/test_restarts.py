"""Handler processes that end at any time leave nothing behind: no descriptor, no shared memory, no memory.

They end idle, in a run, with a batch in a large place of the ring or in a body that they were lent, and while their
handler keeps arrays in that memory.
"""

import os
import signal
import threading
from pathlib import Path

import numpy as np
import pytest

from ksrv._native.memory import buffer_pool
from ksrv._native.memory.memory_budget import PROCESS
from tests.support.engine.engine_models import engine_of
from tests.support.models import write_model
from tests.support.native.fast_path import ask, message, opened, status
from tests.support.wait_until import wait_until

pytestmark = pytest.mark.long

# Numbers of a row: some, too many for a batch's own place, and too many for a large place.
COLUMNS = {"small": 4, "large": 40_000, "huge": 2_400_000}
LARGE = COLUMNS["large"]
HANDLER = """
import os, signal
import numpy as np
from ksrv import BaseHandler

class Mortal(BaseHandler):
    kept = []

    def inference(self, x):
        way = int(x[0, 0])
        if way == 1: os._exit(3)
        if way == 2: os.kill(os.getpid(), signal.SIGKILL)
        if way == 3: self.kept.append(x)
        return {"y": np.full((len(x), 1), os.getpid(), np.int32)}
"""
SETTINGS = """
inputs: [{{name: x, datatype: FP32, shape: [-1, {columns}]}}]
outputs: [{{name: y, datatype: INT32, shape: [-1, 1]}}]
executor: process
warmup: false
retry: false
timeout_ms: 60000
"""


class Mortals:
    """Requests to models of each size of rows, whose process a number in a row ends."""

    def __init__(self, address):
        self._address = address

    def ask(self, model, way):
        row = np.full((1, COLUMNS[model]), way, "<f4")
        head, body = ask(self._address, message(model, {"x": row}))
        return status(head), int.from_bytes(body[-4:], "little")

    def pid(self, model):
        """The number of the process that serves now."""
        answer, pid = self.ask(model, 0)
        return pid if answer == 200 else 0

    def end(self, number):
        """End a process in one of the ways, and wait for its successor."""
        way = number // 3 % 6
        model = list(COLUMNS)[number % 3]
        wait_until(lambda: self.pid(model))
        pid = self.pid(model)
        if way < 2:
            os.kill(pid, signal.SIGKILL)
        elif way < 4:
            assert self.ask(model, way - 1)[0] == 500
        else:
            for _ in range(3):
                assert self.ask(model, 3)[0] == 200
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: self.pid(model) not in (0, pid), tell=lambda: f"{model} by way {way}")


def held():
    """Descriptors, mapped rings, mapped blocks, threads, leased blocks and the budget in use, and shared memory."""
    shared = Path("/proc/self/status").read_text().partition("RssShmem:")[2].split()[0]
    maps = Path("/proc/self/maps").read_text()
    return (
        len(os.listdir("/proc/self/fd")),
        maps.count("ksrv-ring"),
        maps.count("ksrv-block"),
        threading.active_count(),
        buffer_pool.statistics()["leased"],
        PROCESS.held,
        int(shared) * 1024,
    )


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(
    "ends", [18, pytest.param(1000, marks=[pytest.mark.slow, pytest.mark.timeout(7200)])]
)
def test_processes_that_end_leave_nothing_behind(tmp_path, ends):
    for name, columns in COLUMNS.items():
        write_model(tmp_path, name, HANDLER, SETTINGS.format(columns=columns))
    with engine_of(tmp_path) as engine, opened(engine) as (_, address):
        mortals = Mortals(address)
        for number in range(12, 18):  # handlers that keep arrays
            mortals.end(number)
        before, memory = held(), resident()
        for number in range(ends):
            mortals.end(number)
        # A connection that has just closed may be open on the server's side, before and behind; large
        # places get their memory when they are filled for the first time.
        room = (1, 0, 0, 2, 0, 0, 8 * 4 * LARGE)
        most = tuple(a + b for a, b in zip(before, room, strict=True))
        wait_until(
            lambda: all(now <= limit for now, limit in zip(held(), most, strict=True)),
            tell=lambda: f"{held()} beside {before}",
        )
        assert resident() - memory < 4_000_000 + 4_000 * ends
