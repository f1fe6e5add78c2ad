"""The cases of h2spec for servers, on the address of gRPC."""

import socket

import pytest

from ksrv.testing import Server
from tests.support.models import write_all
from tests.support.wire.h2spec_cases import CASES, SECTIONS
from tests.support.wire.h2spec_peer import (
    WAIT,
    Good,
    Recorder,
    alive,
    answered,
    block,
    setting,
    update,
)
from tests.support.wire.http2_wire import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PING,
    SETTINGS,
    frame,
)

APART = {
    "generic/4/1": "test_a_get_and_a_head_are_answered",
    "generic/4/2": "test_a_get_and_a_head_are_answered",
    "http2/3.5/1": "test_settings_come_first",
    "http2/3.5/2": "test_another_preface_ends_the_connection",
    "http2/6.5.3/1": "test_the_last_value_of_a_setting_counts",
    "http2/6.5.3/2": "test_settings_are_acknowledged",
    "http2/6.7/1": "test_a_ping_is_answered_and_its_answer_is_not",
    "http2/6.7/2": "test_a_ping_is_answered_and_its_answer_is_not",
    "http2/6.9.1/1": "test_no_answer_is_longer_than_its_window",
    "http2/6.9.2/1": "test_a_window_that_grows_or_shrinks_is_that_of_open_streams",
    "http2/6.9.2/2": "test_a_window_that_grows_or_shrinks_is_that_of_open_streams",
}
"""The cases that need more than frames and a look: the tests that have them."""


def test_every_case_has_a_test():
    wanted = {
        f"{part}/{section}/{number}"
        for part, sections in SECTIONS.items()
        for section, count in (one.split(":") for one in sections.split())
        for number in range(1, int(count) + 1)
    }
    assert sorted([*(case.number for case in CASES), *APART]) == sorted(wanted)
    assert set(APART.values()) <= set(globals())


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Server(write_all(tmp_path_factory.mktemp("models"))) as running:
        yield running


@pytest.fixture
def good():
    return Good()


@pytest.fixture
def address(server):
    return server.grpc


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.number)
def test_case(address, good, case):
    sent = case.send(good)
    with Recorder(address) as wire:
        for one in [sent] if isinstance(sent, bytes) else sent:
            if one == WAIT:
                wire.until(wire.has_answered)
            else:
                wire.socket.sendall(one)
        case.look(wire)
    with Recorder(address) as other:
        other.socket.sendall(good.whole())
        answered()(other)


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_get_and_a_head_are_answered(address, method):
    fields = [(":method", method), (":scheme", "http"), (":path", "/v2"), (":authority", "x")]
    with Recorder(address) as wire:
        wire.socket.sendall(frame(HEADERS, END_HEADERS | END_STREAM, 1, block(fields)))
        wire.until(wire.has_answered)
        assert wire.begun[1] == 405
        assert any(one[0] == DATA for one in wire.frames) == (method == "GET")


def test_settings_come_first(address):
    with Recorder(address) as wire:
        wire.until(lambda: bool(wire.frames))
        assert wire.frames[0][:3] == (SETTINGS, 0, 0)


def test_another_preface_ends_the_connection(address):
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as peer:
        peer.sendall(b"INVALID CONNECTION PREFACE\r\n\r\n")
        came = b""
        while got := peer.recv(65_536):
            came += got
    assert came.startswith(b"HTTP/1.1 400 ")


def test_settings_are_acknowledged(address):
    with Recorder(address) as wire:
        wire.until(lambda: wire.frames.count((SETTINGS, ACK, 0, b"")) == 1)
        wire.socket.sendall(frame(SETTINGS, 0, 0, setting(3, 100)))
        wire.until(lambda: wire.frames.count((SETTINGS, ACK, 0, b"")) == 2)


def test_a_ping_is_answered_and_its_answer_is_not(address):
    with Recorder(address) as wire:
        wire.socket.sendall(frame(PING, ACK, 0, b"answered") + frame(PING, 0, 0, b"asked...") * 2)
        wire.until(lambda: len(wire.pongs()) == 2)
        assert wire.pongs() == [b"asked..."] * 2


def data_of(wire):
    return [one[3] for one in wire.frames if one[0] == DATA and one[2] == 1]


def test_the_last_value_of_a_setting_counts(address, good):
    with Recorder(address) as wire:
        both = setting(4, 100) + setting(4, 1)
        wire.socket.sendall(frame(SETTINGS, 0, 0, both) + good.whole())
        wire.until(lambda: bool(data_of(wire)))
        alive(wire)
        assert [len(one) for one in data_of(wire)] == [1]


def test_no_answer_is_longer_than_its_window(address, good):
    with Recorder(address) as wire:
        wire.socket.sendall(frame(SETTINGS, 0, 0, setting(4, 1)) + good.whole())
        wire.until(lambda: bool(data_of(wire)))
        wire.socket.sendall(update(1, 2))
        wire.until(lambda: len(data_of(wire)) == 2)
        assert [len(one) for one in data_of(wire)] == [1, 2]


def test_a_window_that_grows_or_shrinks_is_that_of_open_streams(address, good):
    with Recorder(address) as wire:
        wire.socket.sendall(frame(SETTINGS, 0, 0, setting(4, 3)) + good.whole())
        wire.until(lambda: sum(map(len, data_of(wire))) == 3)
        wire.socket.sendall(frame(SETTINGS, 0, 0, setting(4, 2)) + update(1, 2))  # 2 - 3 + 2 = 1
        wire.until(lambda: sum(map(len, data_of(wire))) == 4)
        wire.socket.sendall(frame(SETTINGS, 0, 0, setting(4, 4)))
        wire.until(lambda: sum(map(len, data_of(wire))) == 6)
        alive(wire)
        assert sum(map(len, data_of(wire))) == 6
