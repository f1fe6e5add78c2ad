"""The native queue, the buffer pool and the HTTP server's turns under the sanitizers, in programs without Python."""

import pytest

from tests.support.native.programs import run_program

pytestmark = pytest.mark.long

FLAVOURS = pytest.mark.parametrize("flavour", ["thread", "sanitize"])


@pytest.mark.slow
@pytest.mark.timeout(600)
@FLAVOURS
def test_queue_stress_leaves_no_request(flavour):
    assert "0 left" in run_program(flavour, "queue_stress.cpp", "6")


@pytest.mark.timeout(600)
@FLAVOURS
def test_message_gets_one_answer(flavour):
    run_program(flavour, "connections/http_server_turns.cpp")


@pytest.mark.timeout(600)
@FLAVOURS
def test_muted_connections_lose_no_message(flavour):
    assert "0 lost" in run_program(flavour, "connections/connection_arming.cpp", "40")


@pytest.mark.timeout(600)
def test_block_that_cannot_grow_is_not_pooled():
    """With the C library's realloc, because the sanitizers' realloc returns aligned memory."""
    assert run_program("plain", "unaligned_block.cpp") == "0 faults\n"
