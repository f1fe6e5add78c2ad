"""Long BYTES elements of requests above 8 MiB to handler processes: read where they were received."""

import json
import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from ksrv._native.memory import buffer_pool
from ksrv._native.memory.memory_budget import PROCESS
from tests.support.native.fast_path import ask, opened, posted, serving, status
from tests.support.wait_until import wait_until

HANDLER = """
import os
import signal
from pathlib import Path


def inference(x):
    if x[0] == b"die" and not Path("died").exists():
        Path("died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return {"y": x}
"""
SETTINGS = """
inputs: [{name: x, datatype: BYTES, shape: [-1]}]
outputs: [{name: y, datatype: BYTES, shape: [-1]}]
executor: process
warmup: false
timeout_ms: 60000
"""
JOINED = "batching: {max_batch_size: 12, max_delay_ms: 60000}\n"
VIEWED = 65536  # bytes of the shortest element that is not copied
LONG = np.random.default_rng(6).bytes(9 << 20)


@pytest.fixture
def address(tmp_path, request):
    settings = "handler: handler.py" + SETTINGS + getattr(request, "param", "")
    with serving(tmp_path / "m", HANDLER, settings) as engine, opened(engine) as (_, address):
        yield address


def elements_of(first: bytes, long: bytes = LONG) -> list[bytes]:
    """Elements of all lengths, one of them above the ring's 8 MiB."""
    return [first, long, b"", long[:VIEWED], b"short", long[: VIEWED - 1]]


def exchanged(address: tuple[str, int], elements: list[bytes]) -> list[bytes]:
    """Return the elements of the answer to elements."""
    data = b"".join(len(one).to_bytes(4, "little") + one for one in elements)
    size = {"binary_data_size": len(data)}
    entry = {"name": "x", "datatype": "BYTES", "shape": [len(elements)], "parameters": size}
    text = json.dumps({"inputs": [entry], "parameters": {"binary_data_output": True}}).encode()
    head, body = ask(address, posted("m", text, data))
    assert status(head) == 200, body[:400]
    length = re.search(rb"(?i)inference-header-content-length: (\d+)", head)
    assert length, head
    data, found = body[int(length[1]) :], []
    while data:
        end = 4 + int.from_bytes(data[:4], "little")
        found.append(data[4:end])
        data = data[end:]
    return found


def test_only_short_elements_are_copied_on_their_way_in(address):
    elements = elements_of(b"echo")
    exchanged(address, elements)  # after which the blocks of answers are there
    before, leased = buffer_pool.copied_bytes(), buffer_pool.statistics()["leased"]
    assert exchanged(address, elements) == elements
    assert buffer_pool.copied_bytes() - before == sum(
        len(one) for one in elements if len(one) < VIEWED
    )
    wait_until(lambda: buffer_pool.statistics()["leased"] <= leased and PROCESS.held == 0)


def test_a_death_has_the_elements_run_again(address):
    elements = elements_of(b"die")
    assert exchanged(address, elements) == elements
    wait_until(lambda: PROCESS.held == 0)


@pytest.mark.parametrize("address", [JOINED], indirect=True)
def test_a_batch_holds_the_elements_of_several_bodies(address):
    def is_echoed(number: int) -> bool:
        elements = elements_of(b"echo %d" % number, LONG[number:])
        return exchanged(address, elements) == elements

    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(is_echoed, range(2)))
