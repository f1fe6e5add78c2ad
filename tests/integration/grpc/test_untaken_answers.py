"""Clients that make calls and do not read the answers: only their calls fail."""

import contextlib
import socket

import grpc
import pytest

from ksrv.protocol.protobuf import INFERENCE
from ksrv.server.grpc.limits import CONCURRENT_STREAMS, MAX_CALLS
from ksrv.testing import Server
from tests.support.models import DOUBLE, VECTOR, write_model
from tests.support.servers.metrics import metric
from tests.support.wait_until import wait_until
from tests.support.wire.grpc_calls import call, connect, infer_request, stub_infer
from tests.support.wire.http2_wire import SETTINGS, WINDOW_UPDATE, Wire, frame

pytestmark = pytest.mark.long

INFER = f"/{INFERENCE}/ModelInfer"
LIVE = f"/{INFERENCE}/ServerLive"
ENHANCE_YOUR_CALM = 11
PEERS = MAX_CALLS // CONCURRENT_STREAMS + 4
CROWD = 2 * MAX_CALLS // CONCURRENT_STREAMS + 4  # more answers than the server keeps
# nothing is dropped because of age or rate
PATIENT = {"transfer_grace": 3600, "head_timeout": 3600}
LARGE = """
import numpy as np


def inference(x):
    return {"y": np.zeros((len(x), 2 << 20), np.float32)}
"""


def rows(count):
    return infer_request("double", ("x", "FP32", [count, 4]), raw=[bytes(16 * count)])


ROW = rows(1).SerializeToString()


def window(size):
    return frame(SETTINGS, 0, 0, b"\0\4" + size.to_bytes(4, "big"))


def until_begun(wire, streams):
    while not wire.begun.keys() >= set(streams) and not wire.over:
        wire.read()
    assert not wire.over


def untaken(wires):
    """Return how many calls have begun to be answered and have not ended."""
    for wire in wires:
        wire.look()
    return sum(len(wire.begun.keys() - wire.ended.keys()) for wire in wires)


def take_all(wire, streams):
    """Read all answers at last. Each must be complete."""
    wire.socket.sendall(window(1 << 16))
    for stream in streams:
        assert b"grpc-status: 0" in wire.until_ended(stream)


def no_window(wire):
    """Make as many calls as a connection may, with a flow-control window of zero."""
    wire.socket.sendall(window(0))
    streams = [wire.call(INFER, message=ROW) for _ in range(CONCURRENT_STREAMS)]
    until_begun(wire, streams)
    return streams


def small_calls(wire):
    """Make calls of a size that no limit refuses, with a window of zero."""
    wire.socket.sendall(window(0))
    streams = [wire.call(LIVE, message=b"") for _ in range(CONCURRENT_STREAMS)]
    until_begun(wire, streams)
    return streams


def slow_reader(wire):
    """Read a few bytes of each answer."""
    wire.socket.sendall(window(1))
    streams = [wire.call(INFER, message=ROW) for _ in range(CONCURRENT_STREAMS)]
    until_begun(wire, streams)
    for _ in range(3):
        wire.socket.sendall(b"".join(frame(WINDOW_UPDATE, 0, one, b"\0\0\0\1") for one in streams))
    return streams


def used_up_connection(wire):
    """Leave window on each stream, but none on the connection."""
    wire.socket.sendall(window(1 << 20))
    large = rows(5000).SerializeToString()
    streams = [wire.call(INFER)]
    wire.send(streams[0], b"\0" + len(large).to_bytes(4, "big") + large, last=True)
    until_begun(wire, streams)
    streams += [wire.call(INFER, message=ROW) for _ in range(CONCURRENT_STREAMS - 1)]
    until_begun(wire, streams)
    return streams


@pytest.fixture
def server(tmp_path):
    """A server whose model accepts all of the calls."""
    write_model(tmp_path, "double", DOUBLE, f"{VECTOR}queue_size: {MAX_CALLS}\n")
    with Server(tmp_path, **PATIENT) as running:
        yield running


@pytest.mark.parametrize(
    "attack",
    [no_window, small_calls, slow_reader, used_up_connection],
    ids=lambda one: one.__name__,
)
def test_unread_answers_leave_room_for_others(server, attack):
    with contextlib.ExitStack() as stack:
        honest = stack.enter_context(Wire(server.grpc))
        honest.socket.sendall(window(0))
        slow = [honest.call(INFER, message=ROW) for _ in range(CONCURRENT_STREAMS // 4)]
        until_begun(honest, slow)
        hostile = []
        for _ in range(CROWD):
            wire = stack.enter_context(Wire(server.grpc))
            hostile.append((wire, attack(wire)))
        with connect(server.grpc) as channel:
            infer = stub_infer(channel)
            for _ in range(50):
                assert infer(rows(1), timeout=60).outputs[0].name == "y"
            assert call(channel, "ServerLive").live
        wait_until(lambda: untaken([wire for wire, _ in hostile]) + len(slow) <= 2 * MAX_CALLS)
        codes = {code for wire, _ in hostile for code in wire.resets.values()}
        assert codes == {ENHANCE_YOUR_CALM}, "which clients of gRPC read as RESOURCE_EXHAUSTED"
        ended = [len(wire.resets) for wire, _ in hostile]
        assert max(ended) <= CONCURRENT_STREAMS // 2, "no more than that makes the room"
        for wire, streams in hostile:
            left = [stream for stream in streams if not wire.ended.get(stream)]
            assert sorted(wire.resets) == left[: len(wire.resets)], "the oldest"
        refused = 'ksrv_refused_requests_total{protocol="grpc",reason="calls"}'
        assert metric(server, refused) == sum(ended)
        take_all(honest, slow)


def test_late_reader_loses_no_answer(server):
    """The server keeps the answers as long as its limits allow, however many calls other clients make."""
    with connect(server.grpc) as channel, Wire(server.grpc) as late:
        streams = no_window(late)
        infer = stub_infer(channel)
        for _ in range(40):
            for one in [infer.future(rows(1), timeout=60) for _ in range(90)]:
                assert one.result().outputs[0].name == "y"
        take_all(late, streams)


def test_answers_wait_for_many_clients(server):
    """Clients that read their answers in time lose none, although more are in flight than calls are let in."""
    with contextlib.ExitStack() as stack:
        wires = [stack.enter_context(Wire(server.grpc)) for _ in range(PEERS)]
        waiting = [(wire, no_window(wire)) for wire in wires]
        with connect(server.grpc) as channel:  # the server has then looked at the calls
            assert all(call(channel, "ServerLive").live for _ in range(3))
        for wire, streams in waiting:
            take_all(wire, streams)


def test_full_sockets_leave_room_for_others(tmp_path):
    """Flow control does not hold back the errors of calls, so they fill the socket of a client that reads nothing."""
    write_model(tmp_path, "double", DOUBLE, f"{VECTOR}queue_size: {MAX_CALLS}\n")
    write_model(
        tmp_path,
        "large",
        LARGE,
        "inputs: [{name: x, datatype: FP32, shape: [-1, 4]}]\n"
        f"outputs: [{{name: y, datatype: FP32, shape: [-1, {2 << 20}]}}]\n",
    )
    filling = infer_request("large", ("x", "FP32", [1, 4]), raw=[bytes(16)]).SerializeToString()
    unknown = infer_request("absent", ("x", "FP32", [1, 4]), raw=[bytes(16)]).SerializeToString()
    with Server(tmp_path, **PATIENT) as server, contextlib.ExitStack() as stack:
        wires = [stack.enter_context(Wire(server.grpc)) for _ in range(PEERS)]
        for wire in wires:
            fill_socket(wire, filling)
        for wire in wires:
            for _ in range(CONCURRENT_STREAMS - 1):
                wire.call(INFER, message=unknown)
        channel = stack.enter_context(connect(server.grpc))
        infer = stub_infer(channel)

        def is_answered():
            with contextlib.suppress(grpc.RpcError):  # until those calls are answered
                return infer(rows(1), timeout=60).outputs[0].name == "y"
            return False

        wait_until(is_answered)
        assert all(is_answered() for _ in range(50))


def fill_socket(wire, message):
    """Leave an answer unread that is larger than the socket buffers."""
    wire.socket.sendall(window(1 << 24) + frame(WINDOW_UPDATE, 0, 0, (1 << 24).to_bytes(4, "big")))
    wire.call(INFER, message=message)
    while len(found := wire.socket.recv(1 << 13, socket.MSG_PEEK)) < 1 << 12:
        assert found, "the server closed the connection"  # all other answers are shorter than 4 KiB
