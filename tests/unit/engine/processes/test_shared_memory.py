"""The slots of the memory that a worker shares with a handler process, and memfds for what fits none."""

import os
from contextlib import suppress

import numpy as np
import pytest

from ksrv._native.memory import buffer_pool
from ksrv.engine.processes import link as link_module
from ksrv.engine.processes import messages
from ksrv.engine.processes.link import ChannelError, Link, Packed
from ksrv.engine.processes.messages import MessageType
from ksrv.request import ExecutorOutputs, Tensor
from tests.support.native.links import linked

SLOTS = 8


SIZE = 100_000


@pytest.fixture(params=["to the process", "to the worker"])
def links(request):
    with linked() as both:
        yield both if request.param == "to the process" else both[::-1]


def answer(link: Link, nbytes: int = SIZE) -> Packed:
    array = np.ones((nbytes,), "u1")
    return messages.pack_answer(ExecutorOutputs([Tensor("x", "UINT8", (nbytes,), array)]), link)


def free_slots(link: Link) -> int:
    assert link.shared is not None
    leased = [link.shared.lease(1) for _ in range(SLOTS)]
    return sum(block is not None for block in leased)


def test_message_that_is_dropped_keeps_no_slot():
    with linked("drop") as (sender, receiver):
        packed = answer(sender)
        for _ in range(2000):  # more than the socket has room for
            sender.send(MessageType.ANSWER, packed)
        del packed
        arrived = 0
        with suppress(TimeoutError):
            while receiver.receive(0):
                arrived += 1
        assert 0 < arrived < 2000
        assert free_slots(sender) == SLOTS


@pytest.mark.parametrize("slot", [0, 7, 16, 2**31, 2**32 - 1])
def test_process_cannot_name_other_slots_than_its_own(slot):
    with linked() as (worker, _):
        assert worker.shared.receive(slot) is None
        assert worker.shared.receive(8) is not None


def test_process_cannot_map_memfds_without_end(links, monkeypatch):
    sender, receiver = links
    monkeypatch.setattr(link_module, "MOST_MAPPED", 2)
    sender.shared = None
    kept = []
    for _ in range(2):
        sender.send(MessageType.ANSWER, answer(sender))
        kept.append(receiver.receive(0))
    sender.send(MessageType.ANSWER, answer(sender))
    with pytest.raises(ChannelError, match="one too many"):
        receiver.receive(0)
    del kept[:]
    monkeypatch.setattr(link_module, "MOST_MAPPED_BYTES", SIZE)
    sender.send(MessageType.ANSWER, answer(sender, 2 * SIZE))
    with pytest.raises(ChannelError, match="one too many"):
        receiver.receive(0)


def test_child_of_a_process_returns_none_of_its_slots(links):
    sender, receiver = links
    sender.send(MessageType.ANSWER, answer(sender))
    held = receiver.receive(0)
    child = os.fork()
    if child == 0:
        del held
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert free_slots(sender) == SLOTS - 1
    assert buffer_pool.array(held.blocks[0], "u1", (1,))[0] == 1
