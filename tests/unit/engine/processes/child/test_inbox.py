"""The inbox of a handler process: an invalid message ends it, because waiters would wait for a lost message."""

import threading

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
    def take(frame):
        raise TypeError("cannot be taken")

    inbox = Inbox(ends[0])
    inbox.on(KIND, take)
    failures = []

    def wait():
        try:
            inbox.wait_for(lambda: False)
        except ChannelError as error:
            failures.append(str(error))

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    ends[1].send(KIND)
    for thread in threads:
        thread.join()
    assert failures == ["a message of the worker cannot be taken: TypeError"] * 3
    assert "cannot be taken" in caplog.text
    with pytest.raises(ChannelError):
        inbox.receive_waiting()


def test_timed_out_wait_ends_no_other(ends):
    inbox = Inbox(ends[0])
    assert not inbox.wait_for(lambda: False, 0.0)
    assert not inbox.wait_for(lambda: False, 0.001)
    ends[1].send(KIND)
    assert inbox.take().kind == KIND
