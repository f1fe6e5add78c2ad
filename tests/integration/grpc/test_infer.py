"""ModelInfer over a socket: answers, errors, deadlines, cancellation, sizes, malformed bytes."""

import time

import grpc
import numpy as np
import pytest

from ksrv.errors import RESERVED_HEADERS
from ksrv.server.settings import ServerSettings
from tests.support.engine.held_engine import was_cancelled
from tests.support.wait_until import wait_until
from tests.support.wire.grpc_calls import (
    connect,
    infer_request,
    new_server,
    row_request,
    running,
    stub_infer,
)


@pytest.fixture
def address(engine):
    with running(engine, threads=2) as found:
        yield found


@pytest.fixture
def channel(address):
    with connect(address) as found:
        yield found


def code_of(future_or_call):
    with pytest.raises(grpc.RpcError) as caught:
        future_or_call()
    return caught.value


ROW = np.arange(4, dtype=np.float32).reshape(1, 4)
ADD = infer_request("add", ("x", "FP32", [1, 4]), raw=[ROW.tobytes()], id="7")


def test_internal_error_reaches_the_client_without_its_text(engine, monkeypatch):
    def fail(*arguments, **options):
        raise ZeroDivisionError("a secret")

    monkeypatch.setattr(engine, "submit", fail)
    with running(engine) as address, connect(address) as channel:
        error = code_of(lambda: stub_infer(channel)(ADD, timeout=20))
    assert error.code().name == "INTERNAL"
    assert "see its log" in error.details()
    assert "secret" not in error.details()


def test_handler_headers_become_trailing_metadata(channel):
    _, done = stub_infer(channel).with_call(row_request("headers"), timeout=20)
    assert ("x-took", "5") in done.trailing_metadata()
    assert not {"x#name", *RESERVED_HEADERS} & dict(done.trailing_metadata()).keys()
    error = code_of(lambda: stub_infer(channel)(row_request("failing"), timeout=20))
    assert ("x-cat", "none") in error.trailing_metadata()


@pytest.mark.grpcio
def test_deadline_reaches_the_engine(engine, channel):
    infer = stub_infer(channel)
    late = []
    give_up = time.monotonic() + 60
    while not late:  # a deadline may pass before the call arrives
        before = time.monotonic_ns()
        error = code_of(lambda: infer(row_request("slow", id="late"), timeout=0.3))
        assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        late = [handle for handle in engine.handles if handle.request.id == "late"]
        assert time.monotonic() < give_up
    (handle,) = late
    assert before < handle.request.deadline_ns < before + 10_000_000_000
    wait_until(handle.done)
    engine.release.set()


@pytest.mark.grpcio
@pytest.mark.parametrize("busy", [False, True], ids=["waiting", "deferred"])
def test_cancellation_reaches_the_engine(engine, channel, busy):
    infer = stub_infer(channel)
    held = []
    if busy:
        held = [infer.future(row_request("slow")) for _ in range(4)]
        wait_until(lambda: len(engine.handles) == 4)
    future = infer.future(row_request("slow", id="gone"))
    wait_until(lambda: any(handle.request.id == "gone" for handle in engine.handles))
    future.cancel()
    (handle,) = [handle for handle in engine.handles if handle.request.id == "gone"]
    wait_until(lambda: was_cancelled(handle))
    engine.release.set()
    for kept in held:
        kept.result(20)
    assert stub_infer(channel)(ADD, timeout=20).id == "7"


@pytest.mark.grpcio
def test_stop_lets_accepted_requests_finish(engine):
    server = new_server(engine, ServerSettings())
    port = server.start("127.0.0.1:0")
    with connect(f"127.0.0.1:{port}") as channel:
        future = stub_infer(channel).future(row_request("slow", id="kept"))
        wait_until(lambda: len(engine.handles) == 1)
        server.begin_stop(30)
        engine.release.set()
        assert future.result(20).id == "kept"
        server.stop(30)
        server.stop(30)
