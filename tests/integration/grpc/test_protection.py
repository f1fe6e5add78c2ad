"""Callers without credentials, calls without a message, compression bombs and idle peers do not
affect other clients."""

import contextlib
import queue
import resource
import threading
import time

import grpc
import numpy as np
import pytest
import requests

from ksrv._native.memory.memory_budget import MemoryBudget
from ksrv.limits import MIB
from ksrv.observe.traffic import own_traffic
from ksrv.protocol.protobuf import HEALTH, INFERENCE, REFLECTION, methods
from ksrv.server.credentials import Access
from ksrv.server.grpc import limits as bounds
from ksrv.server.grpc.messages import encoding_of
from ksrv.server.settings import ServerSettings
from ksrv.server.shared import idle_threads
from ksrv.testing import Server
from tests.support.wait_until import wait_until
from tests.support.wire.grpc_calls import (
    call,
    connect,
    infer_request,
    method,
    refused,
    running,
    stub_infer,
)
from tests.support.wire.http2_wire import Wire

pytestmark = pytest.mark.long

INFER = f"/{INFERENCE}/ModelInfer"
STREAM = f"/{INFERENCE}/ModelStreamInfer"
LIVE = f"/{INFERENCE}/ServerLive"
TOKEN = (("authorization", "Bearer good"),)
ROW = np.arange(4, dtype=np.float32).reshape(1, 4)
ADD = infer_request("add", ("x", "FP32", [1, 4]), raw=[ROW.tobytes()], id="7")
ADDED = (ROW + 1).tobytes()


@pytest.fixture
def access(tmp_path):
    """Let calls with one token in."""
    (tmp_path / "tokens").write_text("good\n")
    return Access(ServerSettings(token_file=str(tmp_path / "tokens")))


@pytest.fixture
def guarded(engine, access):
    with running(engine, access=access) as address:
        yield address


def assert_serves(address, metadata=None):
    with connect(address) as channel:
        assert stub_infer(channel)(ADD, timeout=60, metadata=metadata).id == "7"


# ---- calls without a message ------------------------------------------------------------------


def test_calls_without_a_message_do_not_block_others(engine, monkeypatch):
    monkeypatch.setattr(bounds, "MAX_CALLS", 20)
    with running(engine) as address, Wire(address) as idle:
        streams = [idle.call(INFER) for _ in range(60)]
        idle.until_ended(idle.call("/no/such"))  # the server has then seen all calls
        for _ in range(3):
            assert_serves(address)
        # The server ends calls of the connection that has the most.
        block = idle.until_ended(next(iter(streams)))
        assert b"wait for their messages" in block
        assert_serves(address)


@pytest.mark.parametrize(
    "path", [LIVE, f"/{HEALTH}/Check", f"/{HEALTH}/Watch", f"/{INFERENCE}/ModelMetadata"]
)
def test_calls_without_a_message_use_no_thread(engine, path):
    with running(engine, threads=1) as address, Wire(address) as idle:
        for _ in range(60):
            idle.call(path)
        idle.until_ended(idle.call("/no/such"))  # the server has then seen all calls
        with connect(address) as channel:
            assert call(channel, "ServerLive").live
            assert call(channel, "Check", HEALTH).status == 1
            assert call(channel, "ModelMetadata", name="add").name == "add"


def test_slow_message_that_makes_progress_is_awaited(engine):
    message = ADD.SerializeToString()
    head = b"\x00" + len(message).to_bytes(4, "big") + message[:-1]
    with running(engine, head_timeout=0.2, min_transfer_rate=1) as address, Wire(address) as slow:
        stream = slow.call(INFER)
        assert slow.send(stream, head) == len(head)
        begun = time.monotonic()
        wait_until(lambda: time.monotonic() > begun + 1)
        assert slow.send(stream, message[-1:], last=True) == 1
        assert b"DEADLINE" not in slow.until_ended(stream)
    assert [handle.request.id for handle in engine.handles] == ["7"]


def test_large_message_must_arrive_within_the_transfer_timeout(engine):
    limits = {"head_timeout": 0.3, "min_transfer_rate": 1, "transfer_timeout": 1}
    with running(engine, **limits) as address, Wire(address) as slow:
        stream = slow.call(INFER)
        slow.begin_message(stream, 60_000)
        slow.send(stream, bytes(500))  # lasts for seconds at the minimum rate
        assert b"transfer_timeout" in slow.until_ended(stream)
    assert not engine.handles


# ---- bytes in flight --------------------------------------------------------------------------


def test_unfinished_messages_count_in_the_bytes_in_flight(engine):
    budget = MemoryBudget(16 * MIB)
    with (
        running(engine, budget=budget) as address,
        Wire(address) as first,
        contextlib.ExitStack() as stack,
    ):
        kept = first.call(INFER)
        first.begin_message(kept, 12 * MIB)
        assert first.send(kept, bytes(11 * MIB)) == 11 * MIB
        wait_until(lambda: budget.held >= 11 * MIB)
        for _ in range(3):
            wire = stack.enter_context(Wire(address))
            stream = wire.call(INFER)
            wire.begin_message(stream, 12 * MIB)
            wire.send(stream, bytes(11 * MIB))
            assert b"in-flight" in wire.until_ended(stream)
            assert budget.held <= budget.bound
        first.look()
        assert kept not in first.ended
        assert_serves(address)


def test_unfinished_messages_can_use_up_the_budget(engine):
    big = infer_request("echo", ("x", "FP32", [1, 2 * MIB]), raw=[bytes(8 * MIB)], id="big")
    budget = MemoryBudget(14 * MIB)
    with (
        running(engine, budget=budget) as address,
        connect(address) as channel,
        Wire(address) as wire,
    ):
        stream = wire.call(INFER)
        wire.begin_message(stream, 12 * MIB)
        assert wire.send(stream, bytes(8 * MIB)) == 8 * MIB
        wait_until(lambda: budget.held >= 8 * MIB)
        text = refused("RESOURCE_EXHAUSTED", lambda: stub_infer(channel)(big, timeout=60))
        assert "in-flight" in text
        stub = method(channel, "ModelStreamInfer", kind="stream_stream")
        try:  # the error arrives on the stream, or with its end if that was seen first
            told = next(stub(iter([big]), timeout=60)).error_message
        except grpc.RpcError as error:
            told = error.details()
        assert "in-flight" in told
        wire.socket.close()

        def has_room():
            try:
                return stub_infer(channel)(big, timeout=60).id == "big"
            except grpc.RpcError:
                return False

        wait_until(has_room)


# ---- compressed messages ----------------------------------------------------------------------

BOMB = infer_request("echo", ("x", "FP32", [8 * MIB]), raw=[bytes(32 * MIB)])
"""Compressed, it has a thousandth of the size."""

COMPRESSIONS = [grpc.Compression.Gzip, grpc.Compression.Deflate]


@pytest.mark.grpcio
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_message_above_the_inflate_ratio_is_refused(engine, compression):
    with running(engine) as address, connect(address) as channel:
        infer = stub_infer(channel)
        text = refused(
            "RESOURCE_EXHAUSTED", lambda: infer(BOMB, timeout=60, compression=compression)
        )
        assert "--limits-inflate-ratio" in text
        stream = channel.stream_stream(STREAM, lambda made: made.SerializeToString())
        (answer,) = stream(iter([BOMB]), timeout=60, compression=compression)
        assert b"--limits-inflate-ratio" in answer


def test_compressed_messages_are_refused_if_inflating_is_off(engine):
    zeros = infer_request("echo", ("x", "FP32", [1000]), raw=[bytes(4000)], id="z")
    with running(engine, decompress_requests=False) as address, connect(address) as channel:
        infer = stub_infer(channel)
        refused("UNIMPLEMENTED", lambda: infer(zeros, timeout=60, compression=COMPRESSIONS[0]))
        assert infer(zeros, timeout=60).id == "z"


def test_no_message_of_the_services_looks_compressed():
    for service in (INFERENCE, HEALTH, REFLECTION):
        for request, _ in methods(service).values():
            assert 15 not in request.DESCRIPTOR.fields_by_number
    assert encoding_of(ADD.SerializeToString()) is None
    assert encoding_of(b"") is None


# ---- before credentials -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        INFER,
        STREAM,
        f"/{INFERENCE}/RepositoryModelLoad",
        f"/{REFLECTION}/ServerReflectionInfo",
    ],
)
def test_credentials_are_checked_before_the_message(guarded, path):
    with Wire(guarded) as wire:
        assert b"token" in wire.until_ended(wire.call(path))


def test_health_of_a_model_needs_a_token(guarded):
    with connect(guarded) as channel:
        for name in ("add", "add/1", "nope"):
            refused(
                "UNAUTHENTICATED", lambda name=name: call(channel, "Check", HEALTH, service=name)
            )
            refused("UNAUTHENTICATED", lambda name=name: next(watch(channel, name)))
        assert call(channel, "Check", HEALTH, service="add", metadata=TOKEN).status == 1
        assert next(watch(channel, "add", TOKEN)).status == 1


def watch(channel, service="", metadata=None):
    request, _ = methods(HEALTH)["Watch"]
    stub = method(channel, "Watch", HEALTH, "unary_stream")
    return stub(request(service=service), timeout=60, metadata=metadata)


@pytest.mark.parametrize("name", ["ServerLive", "Check"])
def test_open_calls_have_small_messages(guarded, name):
    path = LIVE if name == "ServerLive" else f"/{HEALTH}/{name}"
    with connect(guarded) as channel:
        refused("RESOURCE_EXHAUSTED", lambda: channel.unary_unary(path)(bytes(MIB), timeout=60))
    with Wire(guarded) as wire:
        stream = wire.call(path)
        wire.begin_message(stream, 8 * MIB)
        wire.send(stream, bytes(4 * MIB))
        assert b"message" in wire.until_ended(stream)


# ---- streams ----------------------------------------------------------------------------------


def test_streams_and_watches_without_a_token_use_no_permits(engine, access, monkeypatch):
    monkeypatch.setattr(bounds, "MAX_STREAMS", 2)
    monkeypatch.setattr(bounds, "MAX_OPEN_WATCHES", 2)
    with (
        running(engine, access=access) as address,
        connect(address) as channel,
        connect(address) as other,
        Wire(address) as wire,
    ):
        for _ in range(4):
            wire.call(STREAM)
        watches = [watch(channel) for _ in range(2)]
        assert [next(found).status for found in watches] == [1, 1]
        refused("RESOURCE_EXHAUSTED", lambda: next(watch(channel)))
        assert next(watch(other, metadata=TOKEN)).status == 1
        stub = method(other, "ModelStreamInfer", kind="stream_stream")
        answers = list(stub(iter([ADD]), timeout=60, metadata=TOKEN))
        assert [answer.infer_response.id for answer in answers] == ["7"]


def test_an_idle_stream_is_ended(engine, monkeypatch):
    monkeypatch.setattr(bounds, "STREAM_TIMEOUT_SECONDS", 0.3)
    with running(engine) as address, connect(address) as channel:
        feed = queue.Queue()
        answers = channel.stream_stream(STREAM)(iter(feed.get, None), timeout=60)
        feed.put(ADD.SerializeToString())
        assert ADDED in next(answers)
        assert "message" in refused("DEADLINE_EXCEEDED", lambda: next(answers))
        feed.put(None)


def pool_threads() -> list[str]:
    names = (thread.name for thread in threading.enumerate())
    return [
        name for name in names if name in ("ksrv-grpc-stream", "ksrv-grpc-read", "ksrv-grpc-watch")
    ]


def test_threads_end_after_a_burst(engine, monkeypatch):
    monkeypatch.setattr(idle_threads, "IDLE_SECONDS", 0.2)
    with running(engine) as address:
        with connect(address) as channel, connect(address) as other:
            feeds = [queue.Queue() for _ in range(128)]
            calls = [channel.stream_stream(STREAM)(iter(feed.get, None)) for feed in feeds]
            watches = [watch(other) for _ in range(100)]
            most = 2 * bounds.MAX_STREAMS + bounds.MAX_OPEN_WATCHES
            wait_until(lambda: len(pool_threads()) >= most)
            for feed in feeds:
                feed.put(None)
            for one in (*calls, *watches):
                one.cancel()
        wait_until(lambda: not pool_threads())
        assert_serves(address)


# ---- connections ------------------------------------------------------------------------------


@contextlib.contextmanager
def files_allowed(number):
    """Limit the open files of processes that are started here."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (number, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_grpc_connections_leave_descriptors_for_rest(repository):
    with contextlib.ExitStack() as stack:
        with files_allowed(256):
            server = stack.enter_context(Server(repository, workers=1))
        wires = [stack.enter_context(Wire(server.grpc)) for _ in range(260)]
        for _ in range(5):
            assert requests.get(server.url + "/v2/health/live", timeout=60).status_code == 200
        # The server closed an idle connection to make room for the last connection.
        assert b"grpc-status" in wires[-1].until_ended(wires[-1].call(LIVE, message=b""))
        wires[0].until_over()
        wait_until(lambda: "the limit of connections is reached" in server.log)


def test_longest_idle_connections_are_closed_for_new_clients(engine):
    with running(engine, max_connections=3) as address, contextlib.ExitStack() as stack:
        held = [stack.enter_context(Wire(address)) for _ in range(3)]
        held[0].call(STREAM)  # a new client must not close this connection
        for wire in (held[0], held[2], held[1]):
            wire.until_ended(wire.call(LIVE, message=b""))
        late = stack.enter_context(Wire(address))
        assert b"grpc-status" in late.until_ended(late.call(LIVE, message=b""))
        held[2].until_over()
        assert held[2].goodbye is not None
        for wire in held[:2]:
            assert b"grpc-status" in wire.until_ended(wire.call(LIVE, message=b""))


def test_clients_wait_while_all_connections_are_in_use(engine):
    with running(engine, max_connections=2) as address, contextlib.ExitStack() as stack:
        held = [stack.enter_context(Wire(address)) for _ in range(2)]
        for wire in held:
            wire.call(STREAM)
            wire.until_ended(wire.call(LIVE, message=b""))
        before = own_traffic().accept_pauses
        late = stack.enter_context(Wire(address))
        asked = late.call(LIVE, message=b"")
        wait_until(lambda: own_traffic().accept_pauses > before)
        held[0].socket.close()
        assert b"grpc-status" in late.until_ended(asked)
