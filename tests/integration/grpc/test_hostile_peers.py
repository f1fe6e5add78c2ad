"""Malicious HTTP/2 peers: floods, answers that are not read, frames in the wrong order."""

import contextlib
import gc
import os
import signal
import socket
import threading
import time

import pytest

from ksrv._native.memory.memory_budget import PROCESS
from ksrv.protocol.protobuf import INFERENCE, methods
from ksrv.server.credentials import Access
from ksrv.server.grpc.limits import CONTROL_THREADS
from ksrv.server.settings import ServerSettings
from ksrv.testing import Server
from tests.support.engine.held_engine import was_cancelled
from tests.support.models import write_double
from tests.support.wait_until import wait_until
from tests.support.wire.grpc_calls import (
    call,
    connect,
    row_request,
    running,
    stub_infer,
)
from tests.support.wire.http2_wire import (
    DATA,
    END_HEADERS,
    END_STREAM,
    GRPC_HEAD,
    HEADERS,
    PING,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Wire,
    field,
    frame,
)

pytestmark = pytest.mark.long

CONTINUATION = 9
FLOW_CONTROL_ERROR, CANCEL, ENHANCE_YOUR_CALM = 3, 8, 11
INFER = f"/{INFERENCE}/ModelInfer"
LIVE = f"/{INFERENCE}/ServerLive"
STREAM = f"/{INFERENCE}/ModelStreamInfer"
NAMES = GRPC_HEAD | {":path": LIVE}


SLOW = row_request("slow").SerializeToString()
SLOW = b"\x00" + len(SLOW).to_bytes(4, "big") + SLOW


def block(**changes):
    names = NAMES | {name.replace("_", ":", 1): value for name, value in changes.items()}
    return b"".join(field(*pair) for pair in names.items())


def reset(stream):
    return frame(RST_STREAM, 0, stream, CANCEL.to_bytes(4, "big"))


def flood(address, make, most=200_000):
    """Send frames until the server closes the connection. Return the code of its GOAWAY, or None."""
    with Wire(address) as wire:
        wire.socket.settimeout(20)
        try:
            for number in range(0, most, 100):
                wire.socket.sendall(b"".join(make(number + one) for one in range(100)))
                wire.look()
                if wire.over:
                    break
        except OSError:
            wire.look()
    return wire.goodbye


@pytest.mark.parametrize(
    "make",
    [
        lambda number: frame(PING, 0, 0, bytes(8)),
        lambda number: frame(SETTINGS, 0, 0, b"\x00\x04\x00\x01\x00\x00"),
        lambda number: frame(HEADERS, END_HEADERS, 2 * number + 1, block()) + reset(2 * number + 1),
        lambda number: (
            frame(HEADERS, END_HEADERS, 2 * number + 1, block(_path=INFER))
            + frame(DATA, END_STREAM, 2 * number + 1, SLOW)
            + reset(2 * number + 1)
        ),
        lambda number: (
            frame(HEADERS, 0, 1, block())
            if number == 0
            else frame(CONTINUATION, 0, 1, field("a", "b"))
        ),
        lambda number: (
            frame(HEADERS, END_HEADERS, 1, block()) if number == 0 else frame(DATA, 0, 1)
        ),
        lambda number: frame(2, 0, 2 * number + 1, b"\x00\x00\x00\x00\x10"),
        lambda number: frame(HEADERS, END_HEADERS, 5 if number == 0 else 3, block()),
    ],
    ids=[
        "PING",
        "SETTINGS",
        "RST_STREAM",
        "RST_STREAM behind whole messages",
        "CONTINUATION",
        "empty DATA",
        "PRIORITY",
        "heads of earlier streams",
    ],
)
def test_floods_end_their_connection_and_others_are_served(engine, make):
    """CVE-2023-44487 (RST_STREAM), CVE-2024-28182 (CONTINUATION)."""
    with running(engine) as address, connect(address) as channel:
        assert flood(address, make) == ENHANCE_YOUR_CALM
        assert call(channel, "ServerLive").live


def test_cancelling_waiting_calls_is_no_flood(engine):
    """Clients with deadlines cancel a thousand calls a second and more if a model is too slow."""
    with running(engine) as address, connect(address) as channel:
        infer = stub_infer(channel)
        kept = infer.future(row_request("slow", id="kept"), timeout=60)
        for _ in range(20):
            before = len(engine.handles)
            calls = [infer.future(row_request("slow"), timeout=60) for _ in range(100)]
            wait_until(lambda before=before: len(engine.handles) >= before + 100)
            opened = time.monotonic()
            wait_until(lambda opened=opened: time.monotonic() > opened + 0.02)
            for one in calls:
                one.cancel()
            wait_until(lambda: sum(not handle.done() for handle in list(engine.handles)) <= 1)
        engine.release.set()
        assert kept.result().id == "kept", "it shares its connection with the cancelled calls"


def test_cancelling_calls_while_the_server_sleeps_is_no_flood(tmp_path):
    """The server reads a call and its end at once, for example in a container that got no CPU for some time."""
    write_double(tmp_path)
    with Server(tmp_path) as server, Wire(server.grpc) as wire:
        for _ in range(40):
            os.killpg(server.pid, signal.SIGSTOP)
            try:
                calls = [wire.call(INFER) for _ in range(100)]
                opened = time.monotonic()
                wait_until(lambda opened=opened: time.monotonic() > opened + 0.02)
                wire.socket.sendall(b"".join(map(reset, calls)))
            finally:
                os.killpg(server.pid, signal.SIGCONT)
            assert b"grpc-status: 0" in wire.until_ended(wire.call(LIVE, message=b""))


def test_cancelled_calls_are_not_run(engine):
    """Loads occupy all available threads. Other calls wait, and their callers leave."""
    begun, go = [], threading.Event()

    def hold(look):
        begun.extend(change.name for change in look())
        assert go.wait(60)

    engine.carry_out = hold
    load = f"/{INFERENCE}/RepositoryModelLoad"
    kind, _ = methods(INFERENCE)["RepositoryModelLoad"]
    with running(engine) as address, Wire(address) as wire:

        def ask(name):
            return wire.call(load, message=kind(model_name=name).SerializeToString())

        held = [ask(name) for name in ("add", "echo")]
        wait_until(lambda: len(begun) == len(held) == CONTROL_THREADS)
        left = [ask("image") for _ in range(100)]
        kept = ask("headers")
        assert b"grpc-status: 0" in wire.until_ended(wire.call(LIVE, message=b""))  # they wait
        wire.socket.sendall(b"".join(map(reset, left)))
        assert b"grpc-status: 0" in wire.until_ended(wire.call(LIVE, message=b""))
        go.set()
        for stream in (*held, kept):
            assert b"grpc-status: 0" in wire.until_ended(stream)
    assert sorted(begun) == ["add", "echo", "headers"]


def test_each_answer_allows_one_early_cancellation(engine):
    """A client that sends a call twice takes the first answer, and cancels the other call at any age."""
    with running(engine) as address, Wire(address) as wire:
        for _ in range(40):
            answered = {wire.call(LIVE, message=b"") for _ in range(50)}
            while not wire.over and not wire.ended.keys() >= answered:
                wire.read()
            wire.socket.sendall(b"".join(reset(wire.call(INFER)) for _ in range(50)))
        assert b"grpc-status: 0" in wire.until_ended(wire.call(LIVE, message=b""))


def test_early_resets_below_the_rate_are_no_flood(engine):
    with running(engine) as address, Wire(address) as wire:
        began = time.monotonic()
        for number in range(450):  # 400 at once and 100 per second are allowed
            wait_until(lambda number=number: number < 300 + 100 * (time.monotonic() - began))
            wire.socket.sendall(reset(wire.call(INFER)))
        assert b"grpc-status: 0" in wire.until_ended(wire.call(LIVE, message=b""))


def test_a_client_that_measures_by_pings_is_served(engine):
    """gRPC's Go client sends a ping after each answer, however many calls it makes per second."""
    with running(engine) as address, Wire(address) as wire:
        wire.socket.sendall(frame(WINDOW_UPDATE, 0, 0, (1 << 20).to_bytes(4, "big")))
        for _ in range(240):
            streams = {wire.call(LIVE, message=b"") for _ in range(50)}
            while not wire.over and not wire.ended.keys() >= streams:
                wire.read()
            assert not wire.over
            wire.socket.sendall(frame(PING, 0, 0, bytes(8)) * 50)


@pytest.mark.parametrize(
    "fault",
    [
        lambda stream: frame(HEADERS, END_HEADERS, stream, block() + field("A", "b")),
        lambda stream: (
            frame(HEADERS, END_HEADERS, stream, block())
            + frame(WINDOW_UPDATE, 0, stream, b"\x7f\xff\xff\xff")
        ),
    ],
    ids=["a malformed head", "a window that overflows"],
)
def test_many_stream_faults_are_a_flood(engine, fault):
    """The streams are opened in rounds, up to the limit of open streams. To libnghttp2 this is not a fault.

    CVE-2025-8671.
    """
    with running(engine) as address, connect(address) as channel:
        with Wire(address) as wire:
            for first in range(1, 40_000, 100):
                streams = range(first, first + 100, 2)
                with contextlib.suppress(OSError):
                    wire.socket.sendall(b"".join(map(fault, streams)))
                while not wire.over and not wire.ended.keys() >= set(streams):
                    wire.read()
                if wire.over:
                    break
            # libnghttp2 1.70 itself ends the connection if a window overflows.
            assert wire.goodbye in (ENHANCE_YOUR_CALM, FLOW_CONTROL_ERROR)
        assert call(channel, "ServerLive").live


@pytest.mark.parametrize(
    "sent",
    [
        frame(DATA, 0, 1, b"x"),
        frame(WINDOW_UPDATE, 0, 0, bytes(4)),
        frame(SETTINGS, 0, 0, b"x"),
        frame(SETTINGS, 0, 1, b""),
        frame(PING, 0, 0, b"short"),
        frame(CONTINUATION, END_HEADERS, 1, block()),
        frame(HEADERS, END_HEADERS, 2, block()),
        frame(RST_STREAM, 0, 1, bytes(4)),
        frame(HEADERS, END_HEADERS, 1, b"\xff\xff\xff\xff\xff"),
        frame(HEADERS, 0, 1, block()) + frame(PING, 0, 0, bytes(8)),
        b"GET / HTTP/1.1\r\nHost: ksrv\r\n\r\n",
    ],
    ids=lambda sent: sent[:12].hex(),
)
def test_frames_that_break_the_protocol_end_their_connection(engine, sent):
    """Idle streams, sizes, streams of the wrong side, malformed blocks."""
    with running(engine, head_timeout=2) as address, connect(address) as channel:
        with Wire(address) as wire:
            wire.socket.sendall(sent)
            wire.until_over()
        assert call(channel, "ServerLive").live


def test_stream_with_unread_trailers_is_reset(engine):
    """Trailers are not subject to flow control, but they follow data that the window does not allow."""
    settings = {"transfer_grace": 0.3, "min_transfer_rate": 1 << 20}
    with running(engine, **settings) as address, Wire(address) as wire:
        stream = wire.call(STREAM)
        message = row_request("echo").SerializeToString()
        wire.send(stream, b"\x00" + len(message).to_bytes(4, "big") + message)
        while stream not in wire.begun:
            wire.read()
        wire.socket.sendall(frame(SETTINGS, 0, 0, b"\x00\x04\x00\x00\x00\x00"))  # window 0
        wire.socket.sendall(frame(DATA, END_STREAM, stream))
        wire.until_ended(stream)
        assert wire.resets == {stream: CANCEL}


def test_broken_connection_cancels_its_calls(engine):
    with running(engine) as address:
        with Wire(address) as wire:
            wire.call(INFER, message=row_request("slow").SerializeToString())
            wait_until(lambda: engine.handles)
        wait_until(lambda: was_cancelled(engine.handles[0]))


EMPTY = b"\x00\x00\x00\x00\x00"


def held():
    """The bytes that requests and answers use, without reference cycles of an earlier test."""
    gc.collect()
    return PROCESS.held


def test_small_stream_messages_are_charged_with_their_overhead(engine):
    """Unread answers block the stream's reader, so that its messages pile up."""
    before = held()
    with running(engine) as address, connect(address) as channel:
        with Wire(address) as wire:
            stream = wire.call(STREAM)
            slow = row_request("slow").SerializeToString()
            for _ in range(70):  # more than a stream may have in flight
                wire.send(stream, b"\x00" + len(slow).to_bytes(4, "big") + slow)
            wait_until(lambda: len(engine.handles) >= 60)
            wire.send(stream, EMPTY * 1000)
            wait_until(lambda: held() - before >= 1000 * 256)
            for _ in range(4):
                wire.send(stream, EMPTY * 1000)
            assert b"messages of the stream wait to be taken" in wire.until_ended(stream)
        # The engine may still use bytes of running requests, but not of unread answers.
        wait_until(lambda: held() - before < 70 * 1024)
        assert call(channel, "ServerLive").live


def test_end_with_the_last_bytes_is_seen(engine):
    """Data and FIN in one segment cause one event, and a short read returns only the data."""
    with running(engine, max_connections=20) as address, connect(address) as channel:
        for _ in range(3):
            for _ in range(15):
                with Wire(address) as wire:
                    stream = wire.call(STREAM)
                    wire.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
                    wire.socket.sendall(reset(stream))
                    wire.socket.shutdown(socket.SHUT_WR)
                    with contextlib.suppress(ConnectionError):
                        # otherwise the slot would be kept for minutes
                        while wire.socket.recv(1 << 16):
                            pass
            assert call(channel, "ServerLive").live


def test_peer_that_reads_nothing_is_not_read_from(engine):
    """It sends pings and does not read answers: the server pauses it, or closes the connection within seconds."""
    with running(engine) as address, connect(address) as channel:
        with Wire(address) as wire:
            wire.socket.settimeout(1)
            refused = False
            while not refused:
                try:
                    wire.socket.send(frame(PING, 0, 0, bytes(8)) * 1000)
                except OSError:
                    refused = True
        assert call(channel, "ServerLive").live


@pytest.mark.parametrize("text", ["99999999H", "5124096H", "99999999M", "99999999S"])
def test_huge_deadline_means_no_deadline(engine, text):
    with running(engine) as address, Wire(address) as wire:
        sent = frame(HEADERS, END_HEADERS, 1, block(**{"grpc-timeout": text}))
        wire.socket.sendall(sent + frame(DATA, END_STREAM, 1, EMPTY))
        assert b"grpc-status: 0" in wire.until_ended(1)


def test_caller_checked_before_its_message_is_answered(engine, tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text("good\n")
    settings = ServerSettings(token_file=str(tokens))
    with running(engine, token_file=str(tokens), access=Access(settings)) as address:
        for _ in range(5):  # each of these calls has unknown credentials
            with Wire(address) as wire:
                stream = wire.call(f"/{INFERENCE}/ServerMetadata", authorization="Bearer  good")
                time.sleep(0.05)
                assert stream not in wire.ended
                wire.send(stream, EMPTY, last=True)
                assert b"grpc-status: 0" in wire.until_ended(stream)


def test_stalled_large_message_does_not_delay_small_calls(engine):
    """The server waits for large messages in large pieces, but answers other calls that arrive meanwhile."""
    with running(engine) as address, Wire(address) as wire:
        large = wire.call(INFER)
        wire.begin_message(large, 3 << 20)
        for _ in range(5):
            assert wire.send(large, bytes(200_000)) == 200_000
            assert b"grpc-status: 0" in wire.until_ended(wire.call(LIVE, message=b""))
        assert large not in wire.ended
