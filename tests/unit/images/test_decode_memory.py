"""The memory of images that are decoded: bounded with the requests', waited for, never leaked."""

import threading

import pytest

from ksrv._native.memory.memory_budget import PROCESS
from ksrv.images.decode_memory import DecodingMemory, NoRoom, TooLarge
from tests.support.wait_until import wait_until


@pytest.fixture(autouse=True)
def bound():
    before = PROCESS.bound
    held = PROCESS.held
    PROCESS.bound = held + 100
    yield
    PROCESS.bound = before
    assert PROCESS.held == held


def test_bytes_are_counted_while_they_are_held():
    memory, before = DecodingMemory(), PROCESS.held
    assert memory.take(60) and memory.take(40)
    assert PROCESS.held == before + 100
    memory.give_back(60)
    memory.give_back(40)
    assert PROCESS.held == before


def test_what_can_never_be_held_is_refused_with_both_numbers():
    with pytest.raises(
        TooLarge, match=rf"needs 10000 bytes .* 'in_flight' \({PROCESS.bound} bytes"
    ):
        DecodingMemory().take(10_000)


def test_nothing_is_waited_for_where_no_image_will_make_room():
    memory = DecodingMemory()
    assert PROCESS.reserve(50, small=True)  # a request's body
    try:
        with pytest.raises(NoRoom, match="needs 60 bytes"):
            memory.take(60)
    finally:
        PROCESS.give_back(50)


def test_an_image_waits_for_another_one_of_the_process():
    memory = DecodingMemory()
    assert memory.take(80)
    taken = []
    waiting = threading.Thread(target=lambda: taken.append(memory.take(70)))
    waiting.start()
    wait_until(lambda: memory._waiting)
    assert not taken
    memory.give_back(80)
    waiting.join(60)
    assert taken == [True]
    memory.give_back(70)


def test_nobody_waits_for_an_image_that_nobody_wants():
    memory = DecodingMemory()
    assert memory.take(80)
    assert memory.take(70, lambda: True) is False
    memory.give_back(80)
