"""Header lists far above their limit, from a few bytes of HPACK: their stream ends, and then their connection.

A client stores one long field in HPACK's table, and names it again by one byte each.
"""

import contextlib

import pytest
import requests

from ksrv.protocol.protobuf import INFERENCE
from ksrv.testing import Server
from tests.support.models import write_double
from tests.support.wire.http2_wire import (
    DATA,
    END_HEADERS,
    END_STREAM,
    GRPC_HEAD,
    HEADERS,
    Wire,
    field,
    frame,
)

pytestmark = pytest.mark.long

CONTINUATION = 9
ENHANCE_YOUR_CALM = 11
LIMIT = 16_384
"""--limits-head, by default."""
VALUE = 4_000
LISTED = VALUE + 1 + 32
"""Bytes of a header list that the long field takes (RFC 9113 6.5.2)."""
STORED = b"\x40\x01a\x7f\xa1\x1e" + b"v" * VALUE
"""The long field, with incremental indexing: 3,873 = 0xa1 0x1e follow the 127 of the prefix."""
BOMBS = 2_000
"""Lists that a client sends without a pause; the allowance of a connection is for five of them."""
NAMED = b"\xbe"
"""The field again, by its index 62."""
HEAD = GRPC_HEAD | {":path": f"/{INFERENCE}/ServerLive"}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    write_double(folder)
    with Server(folder) as running:
        yield running


def connect(server):
    return Wire(server.grpc)


def heads(stream, more, flags=END_HEADERS | END_STREAM):
    return frame(HEADERS, flags, stream, b"".join(field(*pair) for pair in HEAD.items()) + more)


def until(wire, done):
    """Read until something has come, or the server has closed the connection."""
    with contextlib.suppress(OSError):
        while not wire.over and not done():
            wire.read()


def store(wire):
    """Have the server store the long field, and wait for its answer: the wire has acknowledged its settings then."""
    wire.socket.sendall(heads(1, STORED))
    until(wire, lambda: 1 in wire.ended)


def send_until_over(wire, frames):
    """Send frames without a pause, and read until the server has closed the connection."""
    with contextlib.suppress(OSError):
        wire.socket.sendall(b"".join(frames))
    until(wire, lambda: wire.over)


def test_a_list_above_its_limit_is_answered_with_the_reason(server):
    with connect(server) as wire:
        wire.socket.sendall(heads(1, STORED + NAMED * (LIMIT // LISTED)))
        until(wire, lambda: 1 in wire.ended)
        assert b"--limits-head" in wire.ended[1]


def test_a_list_of_four_times_its_limit_ends_its_stream_alone(server):
    """CVE-2024-7246: a list above the limit left another table."""
    with connect(server) as wire:
        wire.socket.sendall(heads(1, STORED + NAMED * (4 * LIMIT // LISTED + 1)))
        until(wire, lambda: 1 in wire.ended)
        assert wire.resets == {1: ENHANCE_YOUR_CALM}
        wire.socket.sendall(heads(3, NAMED))
        until(wire, lambda: 3 in wire.begun)
        assert wire.begun[3] in (200, 400)  # the table is as before, and the connection stays open


def test_lists_above_their_limit_end_their_connection(server):
    """Each list decodes 68 KB from 17 bytes. CVE-2023-33953."""
    with connect(server) as wire:
        store(wire)
        send_until_over(wire, (heads(2 * i + 3, NAMED * 17) for i in range(BOMBS)))
        assert wire.goodbye == ENHANCE_YOUR_CALM
        assert set(wire.resets.values()) == {ENHANCE_YOUR_CALM}
        assert len(wire.resets) < BOMBS / 2


def test_block_far_above_the_limit_ends_its_connection_undecoded(server):
    with connect(server) as wire:
        store(wire)
        send_until_over(wire, [heads(3, NAMED * 900_000)])
        assert wire.goodbye == ENHANCE_YOUR_CALM
        assert not wire.resets


def test_a_block_in_many_frames_counts_as_one(server):
    with connect(server) as wire:
        store(wire)
        pieces = (frame(CONTINUATION, 0, 3, b"\x82" * 10_000) for _ in range(50))
        send_until_over(wire, [heads(3, b"", flags=END_STREAM), *pieces])
        assert wire.goodbye == ENHANCE_YOUR_CALM


def test_trailers_count_as_heads_do(server):
    def call(stream):
        return (
            heads(stream, b"", flags=END_HEADERS)
            + frame(DATA, 0, stream, b"\0")
            + frame(HEADERS, END_HEADERS | END_STREAM, stream, NAMED * 17)
        )

    with connect(server) as wire:
        store(wire)
        wire.socket.sendall(call(3))
        until(wire, lambda: 3 in wire.ended)
        assert wire.resets == {3: ENHANCE_YOUR_CALM}
        send_until_over(wire, (call(2 * i + 5) for i in range(BOMBS)))
        assert wire.goodbye == ENHANCE_YOUR_CALM
        assert len(wire.resets) < BOMBS / 2


def test_lists_within_their_limit_are_no_flood(server):
    """A thousand calls that each name 12 KB of metadata by three bytes."""
    with connect(server) as wire:
        store(wire)
        for i in range(1_000):
            stream = 2 * i + 3
            wire.socket.sendall(heads(stream, NAMED * 3))
            until(wire, lambda stream=stream: stream in wire.ended)
        assert not wire.over
    assert requests.get(f"{server.url}/v2/health/live", timeout=60).status_code == 200
