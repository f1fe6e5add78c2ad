"""The inbox of a handler process: an invalid message ends it, because waiters would wait for a lost message."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from ksrv.engine.processes.child.inbox import Inbox
from ksrv.engine.processes.link import ChannelError
from tests.support.native.links import linked

KIND = 5


@pytest.fixture
def ends():
    with linked() as both:
        yield both


def test_invalid_message_ends_every_wait(ends, caplog):
    def handle(frame):
        raise TypeError("cannot be handled")

    inbox = Inbox(ends[0])
    inbox.on(KIND, handle)

    def wait(_):
        with pytest.raises(
            ChannelError, match="message of the worker cannot be handled: TypeError"
        ):
            inbox.wait_for(lambda: False)

    with ThreadPoolExecutor(3) as pool:
        waits = pool.map(wait, range(3))
        ends[1].send(KIND)
        list(waits)
    assert "cannot be handled" in caplog.text
    with pytest.raises(ChannelError):
        inbox.receive_arrived()


def test_timed_out_wait_ends_no_other(ends):
    inbox = Inbox(ends[0])
    assert not inbox.wait_for(lambda: False, 0.0)
    assert not inbox.wait_for(lambda: False, 0.001)
    ends[1].send(KIND)
    assert inbox.next_kept().kind == KIND
