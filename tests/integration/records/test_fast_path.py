"""Of a recorded model only the sampled requests leave the fast path, over REST and gRPC."""

import contextlib

import grpc
import numpy as np
import pytest

from ksrv.records import read_records
from tests.support.models import VECTOR
from tests.support.native.fast_path import ask, message, opened, opened_grpc, serving
from tests.support.wait_until import wait_until
from tests.support.wire.grpc_calls import UNLIMITED, infer_request, stub_infer

DOUBLE = 'def inference(x): return {"y": x * 2}\n'
YAML = f"handler: handler.py\nwarmup: false\n{VECTOR}"
REQUESTS = 120
ROW = np.arange(4, dtype=np.float32).reshape(1, 4)


@contextlib.contextmanager
def over_rest(engine, name):
    """Yield what sends one request, and what tells how many were of the fast path."""
    with opened(engine) as (server, address):

        def send():
            head, body = ask(address, message(name, {"x": ROW}))
            assert head.startswith(b"HTTP/1.1 200 ")
            assert body.endswith((2 * ROW).tobytes())

        yield send, lambda: server.counters()["fast_path"]


@contextlib.contextmanager
def over_grpc(engine, name):
    """As `over_rest`."""
    asked = infer_request(name, ("x", "FP32", [1, 4]), raw=[ROW.tobytes()])
    with (
        opened_grpc(engine) as (server, address),
        grpc.insecure_channel(address, options=UNLIMITED) as channel,
    ):
        infer = stub_infer(channel)

        def send():
            assert infer(asked, timeout=60).raw_output_contents[0] == (2 * ROW).tobytes()

        yield send, lambda: server._core.counters()["fast_path"]


@pytest.mark.parametrize(
    ("executor", "sample"), [("inline", 0), ("inline", 0.5), ("inline", 1), ("process", 0.5)]
)
@pytest.mark.parametrize("over", [over_rest, over_grpc])
def test_a_share_is_recorded_and_the_others_stay(tmp_path, over, executor, sample):
    records = tmp_path / "records"
    keys = f"executor: {executor}\nrecord: {{to: {records}, sample: {sample}}}\n"
    with serving(tmp_path / "double", DOUBLE, YAML + keys) as engine:
        with over(engine, "double") as (send, fast):
            for _ in range(REQUESTS):
                send()
            recorded = REQUESTS - fast()
        # Six standard deviations of half of the requests are 33: by chance more are missed once in 10^9 runs.
        assert abs(recorded - REQUESTS * sample) <= (33 if 0 < sample < 1 else 0)
        if recorded:
            wait_until(lambda: len(list(read_records(records))) == recorded)
    assert all(one.outputs[0].array().tolist() == (ROW * 2).tolist() for one in read(records))


def read(records):
    """Return the records of a folder, which may have no file."""
    return list(read_records(records)) if list(records.rglob("*.jsonl")) else []
