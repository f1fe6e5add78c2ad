"""Clients that leave without having read their streams: nothing that waited for them stays counted.

The worker process collects no reference cycles here, so that only what is given back counts.
"""

import pytest

from ksrv.testing import Server
from tests.support.models import write_model
from tests.support.servers.metrics import bytes_in_flight
from tests.support.streams import ASK_UNREAD
from tests.support.wait_until import wait_until

CHUNK = 400_000
"""Bytes of one answer: large enough to be counted."""

HANDLER = """
import gc
import os
from pathlib import Path

import numpy as np

from ksrv import BaseHandler

gc.disable()  # in the worker, for the inline models


class Large(BaseHandler):
    {async_}def inference(self, x):
        parameters = self.context.batch.requests[0].parameters
        chunk = np.full((1, {floats}), 1.5, "f4")
        try:
            for count in range(10_000):
                if count == parameters.get("dies_at"):
                    os._exit(3)
                yield {{"y": chunk}}
        finally:
            Path(parameters["ended"]).touch()
"""
YAML = """
inputs: [{name: x, datatype: FP32, shape: [-1, 1]}]
outputs: [{name: y, datatype: FP32, shape: [-1, -1]}]
warmup: false
"""
KINDS = {"generators": "", "coroutines": "async "}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    for kind, async_ in KINDS.items():
        for executor in ("inline", "process"):
            code = HANDLER.format(async_=async_, floats=CHUNK // 4)
            write_model(root, f"{kind}_{executor}", code, YAML + f"executor: {executor}\n")
    with Server(root) as made:
        yield made


def left(server):
    wait_until(
        lambda: bytes_in_flight(server) == 0,
        tell=lambda: f"{bytes_in_flight(server)} bytes are held",
    )


@pytest.mark.parametrize("way", ASK_UNREAD)
@pytest.mark.parametrize("executor", ["inline", "process"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_client_that_leaves_leaves_no_bytes(server, tmp_path, kind, executor, way):
    ended = tmp_path / "ended"
    with ASK_UNREAD[way](server, f"{kind}_{executor}", {"ended": str(ended)}):
        wait_until(lambda: bytes_in_flight(server) >= CHUNK)
    wait_until(ended.exists)
    left(server)


@pytest.mark.parametrize("way", ASK_UNREAD)
@pytest.mark.parametrize("kind", KINDS)
def test_nor_does_one_that_leaves_after_the_deadline(server, tmp_path, kind, way):
    ended = tmp_path / "ended"
    parameters = {"ended": str(ended), "timeout": 2_000_000}
    with ASK_UNREAD[way](server, f"{kind}_inline", parameters):
        wait_until(ended.exists)
        assert bytes_in_flight(server) >= CHUNK
    left(server)


@pytest.mark.parametrize("way", ASK_UNREAD)
def test_nor_does_one_whose_handler_process_has_died(server, tmp_path, way):
    # Late enough that the first chunks are sent, early enough that the last chunks wait.
    parameters = {"ended": str(tmp_path / "ended"), "dies_at": 12}
    with ASK_UNREAD[way](server, "generators_process", parameters):
        wait_until(lambda: bytes_in_flight(server) >= CHUNK)
    left(server)
