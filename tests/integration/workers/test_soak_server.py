"""A server under good requests and every attack for a while: it answers the requests, and does not grow from the attacks."""

import os
import re
import ssl
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from ksrv.server.grpc.limits import MAX_OPEN_WATCHES, MAX_WATCHES
from ksrv.server.grpc.limits import SPARE_THREADS as SPARE_WATCHES
from ksrv.testing import Server
from tests.support.certificates import self_signed
from tests.support.clients.attacks import Attacks
from tests.support.faults.callers import addresses
from tests.support.faults.health import descendants, opened, threads
from tests.support.faults.patterns import write_patterns
from tests.support.faults.storms import Load, judge_answers, running
from tests.support.models import write_model
from tests.support.wait_until import wait_until

HANDLER = """
import asyncio

class Panic(BaseException):
    pass

WAYS = {-1: Panic("an odd input"), -2: asyncio.CancelledError(), -3: ValueError("a wrong input")}

def inference(x):
    if (error := WAYS.get(float(x[0, 0]))) is not None:
        raise error
    return {"y": x}
"""

ROWS = """
inputs: [{name: x, datatype: FP32, shape: [-1, 16]}]
outputs: [{name: y, datatype: FP32, shape: [-1, 16]}]
timeout_ms: 5000
"""

PICTURES = """
inputs: [{name: image, datatype: FP32, shape: [-1, 32, 32, 3]}]
outputs: [{name: y, datatype: FP32, shape: [-1, 1]}]
"""

LARGE = """
inputs: [{name: x, datatype: INT32, shape: [-1]}]
outputs: [{name: y, datatype: UINT8, shape: [-1, -1]}]
"""

LARGE_HANDLER = """
import numpy as np

def inference(x):
    return {"y": np.zeros((len(x), 8 << 20), np.uint8)}
"""

SETTINGS = {
    "limits": {"body": 64 << 20, "in_flight": 128 << 20, "json": 4 << 20},
    "head_timeout": 2.0,
    "transfer_grace": 2.0,
}
GROWN_BYTES = 64_000_000
"""A kilobyte a request were more than twice as much, in five minutes."""
POOLED = 32
"""Descriptors of blocks that may be in a pool at the end, on either side, and were not at first."""
KEPT_THREADS = MAX_WATCHES + MAX_OPEN_WATCHES + SPARE_WATCHES + 8
"""Threads that served watches are kept for later watches: they become as many as were ever needed at a time."""
REFUSALS = {408, 503, 8, 14}
"""Statuses of good requests while the attacks hold the budget, and of clients that are too slow on a busy machine."""


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    root = write_patterns(tmp_path_factory.mktemp("models"))
    write_model(root, "attacked", HANDLER, ROWS + "executor: inline\n")
    write_model(root, "attacked_separate", HANDLER, ROWS + "executor: process\n")
    picture = 'def inference(image): return {"y": image.mean(axis=(1, 2, 3)).reshape(-1, 1)}\n'
    write_model(root, "picture", picture, PICTURES)
    write_model(root, "large", LARGE_HANDLER, LARGE)
    return root


def held_bytes(server):
    """Return the resident bytes of a server's processes; a page that they share, such as a ring's, counts once."""
    rollups = [Path(f"/proc/{one}/smaps_rollup").read_text() for one in descendants(server.pid)]
    return sum(int(re.search(r"^Pss: +(\d+) kB$", text, re.M)[1]) << 10 for text in rollups)


def attack(server, seconds, names=None, trusted=None):
    """Attack a server beside clients that it must serve until each attack was made."""
    context = trusted and ssl.create_default_context(cafile=str(trusted))
    stop, failures = threading.Event(), []
    attacks = [Attacks(server, stop, context, trusted and str(trusted)) for _ in range(2)]
    wanted = set(names or attacks[0].names())
    with Load(addresses(server), "soak", trusted=trusted) as load:
        with running([partial(one.run, at, names) for at, one in enumerate(attacks)], failures):
            try:
                stop.wait(seconds)
                wait_until(
                    lambda: failures or wanted <= {name for one in attacks for name in one.made},
                    240,
                )
            finally:
                stop.set()
        load.wait_for(1)
    assert not failures
    judge_answers(load.ledger)
    others = [one.outcome for one in load.ledger.records if one.outcome.kind != "answered"]
    assert all(one.kind == "refused" and one.status in REFUSALS for one in others), others[:5]
    assert load.ledger.outcomes()["answered"] > len(others)


def outlive(server, seconds, names=None, trusted=None, idle=40):
    """Attack a server twice, and wait until it holds no more than after the first time."""
    most_threads = threads(server) + KEPT_THREADS
    attack(server, seconds / 4, names, trusted)
    time.sleep(idle)  # until the first time's pools are given back and its connections closed
    most_bytes, most_opened = held_bytes(server) + GROWN_BYTES, opened(server) + POOLED
    attack(server, seconds, names, trusted)
    wait_until(
        lambda: (
            opened(server) <= most_opened
            and threads(server) <= most_threads
            and held_bytes(server) <= most_bytes
        ),
        90,
        lambda: (
            f"{opened(server)} descriptors of {most_opened}, {threads(server)} threads of "
            f"{most_threads}, {held_bytes(server)} bytes of {most_bytes}"
        ),
    )
    assert server.get("/v2/health/ready")[0] == 200


def test_a_server_under_mixed_load_keeps_its_descriptors(repository):
    with Server(repository, **SETTINGS) as server:
        outlive(server, 2, ("attack_panics", "attack_resets"), idle=1)


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_a_server_under_every_attack_for_minutes_does_not_grow(repository):
    with Server(repository, **SETTINGS) as server:
        outlive(server, 60 * float(os.environ.get("MINUTES", "5")))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_server_with_tls_outlives_every_attack(repository, tmp_path):
    key, cert = self_signed(tmp_path)
    with Server(repository, tls_cert=str(cert), tls_key=str(key), **SETTINGS) as server:
        outlive(server, 8, trusted=cert)
