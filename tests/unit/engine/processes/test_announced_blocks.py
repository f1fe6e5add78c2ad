"""A sender cannot make a receiver map more bytes than allowed, nor use up its descriptors."""

import os

import pytest

from ksrv.engine.processes.link import ChannelError, Link, Packed
from tests.support.native.links import linked

KIND = 17
BLOCK = 65536


@pytest.fixture
def links():
    with linked() as both:
        yield both


def announce(sender: Link, nbytes: int) -> object:
    block = sender.exported.lease(nbytes)
    sender.send(KIND, Packed(blocks=[block]))
    return block


def test_total_size_of_blocks_is_limited(links):
    receiver, sender = links
    receiver.imported.most_kept = 8 * BLOCK
    kept = []
    for _ in range(8):
        kept.append(announce(sender, BLOCK))
        receiver.receive(0)
    kept.append(announce(sender, BLOCK))
    with pytest.raises(ChannelError, match=r"announced beside 524288 bytes; .* at most 524288"):
        receiver.receive(0)


def test_size_of_a_block_is_limited(links):
    receiver, sender = links
    receiver.imported.most_kept = 8 * BLOCK
    announce(sender, 9 * BLOCK)
    with pytest.raises(ChannelError, match="at most 524288"):
        receiver.receive(0)


def test_sender_respects_the_limit_and_continues_when_blocks_return(links):
    _, sender = links
    sender.exported.most_kept = 4 * BLOCK
    kept = [sender.exported.lease(BLOCK) for _ in range(4)]
    with pytest.raises(MemoryError, match="have 262144 bytes of at most 262144"):
        sender.exported.lease(BLOCK)
    kept.pop()
    sender.exported.lease(BLOCK)


def test_disowned_blocks_no_longer_count(links):
    receiver, sender = links
    receiver.imported.most_kept = 40 * BLOCK
    for _ in range(200):  # dropped here at once, but the receiver returns none
        announce(sender, BLOCK)
        receiver.receive(0)
    assert len(receiver.imported.numbers()) <= 40


def test_received_blocks_keep_no_descriptor(links):
    receiver, sender = links
    before = len(os.listdir("/proc/self/fd"))
    kept = []
    for _ in range(20):
        kept.append(announce(sender, BLOCK))
        receiver.receive(0)
    assert len(receiver.imported.numbers()) == 20
    assert len(os.listdir("/proc/self/fd")) == before + 20  # the sender's
