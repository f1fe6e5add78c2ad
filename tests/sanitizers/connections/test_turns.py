"""The turns of connections while other clients flood the server, in a program without Python."""

import re

import pytest

from tests.support.certificates import self_signed
from tests.support.native.programs import run_program

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

FLOOD = 40_000 * 9


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    files = self_signed(tmp_path_factory.mktemp("certificate"))
    return run_program("sanitize", "connections/turns.cpp", *map(str, files))


def test_message_in_many_records_is_received_in_turns(printed):
    served = dict(re.findall(r"(\S+): served (\d+) times", printed))
    assert int(served["HTTP/1.1"]) >= 5  # of about ten turns
    assert "gRPC" not in served or int(served["gRPC"]) >= 5


def test_call_waits_for_one_turn_of_each_flood(printed):
    if "libnghttp2 is missing" in printed:
        pytest.skip("libnghttp2 is missing")
    assert "4 calls served, floods read, 0 bytes are held" in printed
    [line] = re.findall(r"small frames: (.*) bytes waited", printed)
    waiting = [int(one) for one in line.split()]
    assert waiting == sorted(waiting, reverse=True)
    assert len(set(waiting)) == 4
    assert FLOOD < waiting[0] < 2 * FLOOD
    assert waiting[3] > 0
