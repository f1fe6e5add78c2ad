"""Clients that stop reading their streams: how much a handler makes ahead of them, over each way to it."""

import pytest

from ksrv.testing import Server
from tests.support.models import write_model
from tests.support.streams import ASK_UNREAD
from tests.support.wait_until import wait_until

CHUNK = 64 * 1024
CHUNKS = 2000
KERNEL = 4 << 20
"""The bytes that the kernel takes on an HTTP/1.1 connection before the server notices: the maximum of `tcp_wmem`."""
WAITING = 1 << 20
"""The bytes that wait for a client in the server; as many again may have been taken to be sent."""
AHEAD = 256 * 1024
"""The bytes that a handler process sends before the worker has taken them."""

HANDLER = """
from pathlib import Path

import numpy as np

from ksrv import BaseHandler


class Large(BaseHandler):
    {async_}def inference(self, x):
        made = Path(self.context.batch.requests[0].parameters["made"])
        chunk = np.full((1, {floats}), 1.5, "f4")  # "1.5," in JSON: as long as in binary
        count = 0
        try:
            for count in range(1, {chunks} + 1):
                yield {{"y": chunk}}
        finally:
            aside = made.with_suffix(".new")
            aside.write_text(str(count))
            aside.rename(made)
"""
YAML = """
inputs: [{name: x, datatype: FP32, shape: [-1, 1]}]
outputs: [{name: y, datatype: FP32, shape: [-1, -1]}]
warmup: false
"""
KINDS = {"generators": "", "coroutines": "async "}
MODELS = [
    (kind, executor, way)
    for kind in KINDS
    for executor in ("inline", "process")
    for way in ("rest", "grpc")
]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    for kind, executor, way in MODELS:
        code = HANDLER.format(async_=KINDS[kind], floats=CHUNK // 4, chunks=CHUNKS)
        write_model(root, f"{kind}_{executor}_{way}", code, YAML + f"executor: {executor}\n")
    with Server(root) as made:
        yield made


@pytest.fixture(scope="module")
def made_bytes(server, tmp_path_factory):
    """The bytes that each handler has made when it was ended, because its client took nothing for so long."""
    folder = tmp_path_factory.mktemp("made")
    files = {model: folder / "_".join(model) for model in MODELS}
    clients = [
        ASK_UNREAD[model[2]](server, file.name, {"made": str(file)})
        for model, file in files.items()
    ]
    for file in files.values():
        wait_until(file.exists)
    for client in clients:
        client.__exit__()
    return {model: int(file.read_text()) * CHUNK for model, file in files.items()}


@pytest.mark.parametrize(("kind", "executor", "way"), MODELS)
def test_a_handler_makes_no_more_than_its_client_and_the_bounds_let_it(
    made_bytes, kind, executor, way
):
    bound = 2 * WAITING + (KERNEL if way == "rest" else CHUNK)
    bound += 2 * CHUNK  # the chunk that reaches a bound, and the chunk that is being made
    if executor == "process":
        bound += AHEAD + CHUNK
    assert made_bytes[kind, executor, way] <= bound
