"""Handler processes that write into the memory they share with the worker what no process should."""

import errno
import threading
import time

import numpy as np
import pytest
import requests

from ksrv.testing import Server
from tests.integration.handler_processes.test_ring import JOINED, PROCESS, asked, values_of
from tests.support.models import write_model
from tests.support.native.fast_path import row
from tests.support.wait_until import wait_until

HANDLER = """
import ctypes, os, random, struct, threading, time
from pathlib import Path
from ksrv import BaseHandler

def ring():
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "ksrv-ring" in line:
            first, last = (int(one, 16) for one in line.split()[0].split("-"))
            return first, last - first
    raise RuntimeError("no ring was found")

CONTROL, BATCHES, LARGE = 4096, 8 * 65536, 16 << 23
WORDS = {
    "dispatched": 0, "sleeps": 8, "completed": 64, "held": 80, "wake_at": 192, "worker_sleeps": 200,
}

def put(offset, value):
    ctypes.memmove(ring()[0] + offset, struct.pack("<Q", value), 8)

def scribble(first, last, seconds):
    base, size = ring()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for _ in range(50):
            at = random.randrange(first, min(last, size) - 64)
            ctypes.memset(base + at, random.randrange(256), random.randrange(1, 64))

class Attacks(BaseHandler):
    def inference(self, x):
        way = int(x[0, 0])
        if way == -1: put(WORDS["completed"], 2**64 - 1)
        if way == -2: put(WORDS["completed"], 1 << 40)
        if way == -3: threading.Timer(0.05, put, (WORDS["completed"], 5)).start()
        if way == -4: scribble(0, CONTROL, 0.05)
        if way == -5:
            thread = threading.Thread(target=scribble, args=(CONTROL + BATCHES, ring()[1] - LARGE, 1.0))
            thread.daemon = True
            thread.start()
        if way == -6: scribble(CONTROL, CONTROL + BATCHES, 0.05)
        if way == -7:
            channel = next(
                int(fd) for fd in os.listdir("/proc/self/fd")
                if os.readlink(f"/proc/self/fd/{fd}").startswith("socket:")
            )
            for _ in range(3000):
                try:
                    os.write(channel, b"x" * random.choice((1, 1, 1, 30, 300)))
                except OSError:
                    break
        if way == -8:
            for k in range(8):
                put(WORDS["held"] + 8 * k, 2**64 - 1)
        if way == -9: x[0, 1:4] = punch()
        return {"y": x * 1}
"""
WAYS = range(-8, 0)
PUNCHES = HANDLER.replace(
    "class Attacks(BaseHandler):",
    """
def punch():
    libc = ctypes.CDLL(None, use_errno=True)
    base, size = ring()
    found = [libc.madvise(ctypes.c_void_p(base + at), 4096, 9) for at in (4096, size - 4096)]
    return [*found, ctypes.get_errno()]

class Attacks(BaseHandler):
    def initialize(self, context):
        super().initialize(context)
        maps = Path("/proc/self/maps").read_text().splitlines()
        (inode,) = {line.split()[4] for line in maps if "ksrv-ring" in line}
        for path in Path(f"/proc/{os.getppid()}/fd").iterdir():
            try:
                is_ring = "ksrv-ring" in os.readlink(path) and str(os.stat(path).st_ino) == inode
            except FileNotFoundError:  # the worker has closed it meanwhile
                continue
            if is_ring:
                fd = os.open(path, os.O_RDWR)
                way, start, size = ctypes.c_int(3), ctypes.c_long(0), ctypes.c_long(1 << 20)
                if ctypes.CDLL(None).fallocate(fd, way, start, size):
                    raise RuntimeError("the hole cannot be punched")
                if context.parameters.get("seal"):
                    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL)
""",
).replace("import ctypes,", "import ctypes, fcntl,")


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    root = tmp_path_factory.mktemp("attacks")
    for name, more in (("separate", ""), ("joined", JOINED)):
        write_model(root, name, HANDLER, PROCESS.replace("60000", "3000") + more)
    write_model(root, "other", HANDLER, PROCESS)
    with Server(root) as running:
        yield running


@pytest.mark.parametrize("model", ["separate", "joined"])
@pytest.mark.parametrize("way", WAYS)
def test_the_worker_believes_nothing(served, model, way):
    """Each client is answered whatever the process writes, nobody else notices, and the model still serves."""
    stop = threading.Event()
    wrong: list[str] = []

    def client(name: str) -> None:
        with requests.Session() as session:
            turn = 0
            while not stop.is_set():
                turn += 1
                answer = asked(served, name, row(1, turn), session)
                if name == "other" and not np.array_equal(values_of(answer), row(1, turn)):
                    wrong.append(answer.text)

    clients = [threading.Thread(target=client, args=(name,)) for name in (model, model, "other")]
    for thread in clients:
        thread.start()
    for _ in range(3):
        answer = asked(served, model, row(way))
        assert answer.status_code in (200, 500, 503, 504), answer.text
    stop.set()
    for thread in clients:
        thread.join()
    assert wrong == []
    if way == -5:
        time.sleep(1)  # the handler scribbles no longer than that
    wait_until(lambda: asked(served, model, row(1, 2)).status_code == 200)
    for number in range(10):
        assert np.array_equal(values_of(asked(served, model, row(1, number))), row(1, number))
    if (
        model == "separate"
    ):  # in a large place, or as a message where all of these are said to be held
        many = np.full((20_000, 4), 1, "f4")
        assert np.array_equal(values_of(asked(served, model, many)), many)


def test_the_process_takes_no_memory_from_the_worker(tmp_path):
    """Holes that `initialize` punched are filled; later holes are refused, and the rows are right."""
    write_model(tmp_path, "separate", PUNCHES, PROCESS)
    with Server(tmp_path) as server:
        for _ in range(3):
            asked_row = row(-9, 1, 2, 3)
            found = values_of(asked(server, "separate", asked_row))
            assert found[0].tolist() == [-9, -1, -1, errno.EPERM]
            assert np.array_equal(values_of(asked(server, "separate", row(1, 2))), row(1, 2))


def test_memory_that_the_process_has_sealed_is_not_used(tmp_path):
    """The worker could not keep it from being taken away: the model is not loaded, and says why."""
    write_model(tmp_path, "separate", PUNCHES, PROCESS + "parameters: {seal: true}\n")
    write_model(tmp_path, "other", PUNCHES, PROCESS)
    with Server(tmp_path, ready_when="any") as server:
        answer = asked(server, "separate", row(1))
        assert answer.status_code == 503 and "cannot be sealed" in server.log
        assert np.array_equal(values_of(asked(server, "other", row(1))), row(1))
