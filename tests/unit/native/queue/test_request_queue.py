"""Tickets and queues one by one: waiting, signals, misuse, forks, and many deadlines."""

import os
import random
import signal
import subprocess
import sys
import threading
import time

import pytest

from ksrv._native.memory.memory_budget import PROCESS
from ksrv._native.queue import request_queue as native

MILLISECOND = 1_000_000


class Interrupted(Exception):
    """What the handler of a signal raises."""


@pytest.fixture
def alarm():
    """Return a function that sends this process a signal soon, over and over; and who to call."""
    called = []
    before = signal.signal(signal.SIGALRM, lambda *_: called.append(1))

    def start(act=None):
        if act is not None:
            signal.signal(signal.SIGALRM, act)
        signal.setitimer(signal.ITIMER_REAL, 0.05, 0.02)
        return called

    yield start
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def interrupting(ticket):
    """What raises once a ticket is in its queue: a signal may come before the main thread waits."""

    def act(*_):
        if ticket.state == "queued":
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise Interrupted

    return act


def test_waiting_ends_at_its_time():
    queue = native.Queue(10)
    ticket = native.Ticket("a", 1, 0)
    assert queue.push(ticket) == native.OK
    until = time.monotonic_ns() + 20 * MILLISECOND
    assert ticket.join(until) is False
    assert time.monotonic_ns() >= until
    assert ticket.join(0) is False, "a time that has passed"
    assert ticket.state == "queued" and not ticket.done()
    assert ticket.cancel() and ticket.join(0)


def test_a_signal_handler_runs_while_a_ticket_is_waited_for(alarm):
    queue = native.Queue(10)
    ticket = native.Ticket("a", 1, 0)
    queue.push(ticket)
    called = alarm()

    def finish():
        while len(called) < 2:
            time.sleep(0.001)
        queue.finish(queue.take(0, 1, 1), ["answer"])

    queue.add_slot()
    thread = threading.Thread(target=finish)
    thread.start()
    assert ticket.join() and ticket.answer == "answer"
    thread.join()
    assert len(called) >= 2


@pytest.mark.parametrize("both", [False, True], ids=["join", "push_and_join"])
def test_what_a_signal_handler_raises_ends_the_waiting(alarm, both):
    queue = native.Queue(10)
    ticket = native.Ticket("a", 1, 0)
    if not both:
        queue.push(ticket)

    def wait():
        alarm(interrupting(ticket))
        return queue.push_and_join(ticket) if both else ticket.join()

    with pytest.raises(Interrupted):
        wait()
    assert ticket.state == "queued", "the request goes on"
    assert ticket.cancel()


def test_tickets_are_made_and_pushed_once():
    queue = native.Queue(10)
    ticket = native.Ticket("a", 1, 0)
    with pytest.raises(TypeError, match="made once"):
        ticket.__init__("b", 1, 0)
    assert queue.push(ticket) == native.OK
    for call in (queue.push, queue.push_and_join, queue.push_inline):
        with pytest.raises(ValueError, match="pushed once"):
            call(ticket)
    assert queue.take_all() == [ticket]
    assert queue.take_all() == []
    with pytest.raises(ValueError, match="2 answers for 1 tickets"):
        queue.finish([ticket], [1, 2])
    queue.finish([ticket], [1])
    assert ticket.answer == 1 and queue.waiting == queue.open == 0


def test_a_ticket_that_was_never_pushed_cannot_be_cancelled():
    ticket = native.Ticket("a", 1, 0)
    assert not ticket.cancel()
    assert ticket.state == "new"


def test_a_queue_says_what_it_holds():
    queue = native.Queue(2, "cats")
    tickets = [native.Ticket(n, 1, 0) for n in range(3)]
    assert [queue.push(one) for one in tickets] == [native.OK, native.OK, native.FULL]
    assert repr(queue) == "<Queue 'cats': 2 waiting, 2 open>"
    queue.close()
    assert queue.closed and queue.push(native.Ticket(9, 1, 0)) == native.CLOSED
    assert queue.wait_empty(time.monotonic_ns() + MILLISECOND) is False
    for one in tickets[:2]:
        assert one.cancel()
    assert queue.wait_empty(time.monotonic_ns() + MILLISECOND)


def test_a_nudge_wakes_an_instance_without_work():
    queue = native.Queue(2)
    slot = queue.add_slot()
    found = []
    thread = threading.Thread(target=lambda: found.append(queue.take(slot, 1, 1)))
    thread.start()
    while queue.idle == 0:
        time.sleep(0.001)
    queue.nudge(slot)
    thread.join(60)
    assert found == [[]]


def test_a_caller_that_may_wait_for_others_claims_a_slot():
    queue = native.Queue(2)
    queue.inline_for_all = True
    slot = queue.add_slot()
    thread = threading.Thread(target=lambda: queue.take(slot, 1, 1))
    thread.start()
    while queue.idle == 0:
        time.sleep(0.001)
    ticket = native.Ticket("a", 1, 0)
    assert queue.push_inline(ticket) == -1 - slot
    assert queue.finish([ticket], ["mine"]) == [True] and ticket.join(0)
    queue.return_slot(slot)
    queue.close()
    thread.join(60)
    assert not thread.is_alive() and ticket.answer == "mine"


def test_many_deadlines_and_cancellations_in_any_order():
    rng = random.Random(5)
    queue = native.Queue(1000)
    tickets = []
    for number in range(600):
        deadline = time.monotonic_ns() + (1000 + rng.randrange(150)) * MILLISECOND
        ticket = native.Ticket(number, 1, 0, rng.randrange(3), deadline)
        assert queue.push(ticket) == native.OK
        tickets.append(ticket)
    rng.shuffle(tickets)
    cancelled, left = tickets[:300], tickets[300:]
    gone = [one.cancel() for one in cancelled]
    for ticket in left:
        assert ticket.join(time.monotonic_ns() + 30_000 * MILLISECOND)
    assert {one.state for one in left} == {"expired"}
    assert all(one.ended_ns >= one.deadline_ns for one in left)
    for ticket, first in zip(cancelled, gone, strict=True):
        assert ticket.state == ("cancelled" if first else "expired")
    assert queue.waiting == queue.open == 0


@pytest.mark.skipif(
    "asan" in os.environ.get("LD_PRELOAD", ""),
    reason="the sanitizer's allocator may be locked by another thread when the process forks",
)
def test_deadlines_are_watched_in_a_forked_child():
    script = """
import os, time
from ksrv._native.queue import request_queue as native

def expires():
    queue = native.Queue(10)
    pushed = native.EXPIRED  # where this process rested for so long in between
    while pushed == native.EXPIRED:
        ticket = native.Ticket("a", 1, 0, 0, time.monotonic_ns() + 20_000_000)
        pushed = queue.push(ticket)
    assert pushed == native.OK
    return ticket.join(time.monotonic_ns() + 20_000_000_000) and ticket.state == "expired"

assert expires()
child = os.fork()
if child == 0:
    raise SystemExit(0 if expires() else 1)
assert os.waitpid(child, 0)[1] == 0
assert expires()
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_a_callback_added_before_the_waiters_are_woken_is_called():
    queue = native.Queue(4)
    slot = queue.add_slot()
    ticket = native.Ticket("request", 1, 1)
    assert queue.push(ticket) == native.OK
    queue.finish(queue.start(queue.take(slot, 1, 0)), ["answer"], True)
    seen = []
    ticket.add_done_callback(lambda ended: seen.append((ended.done(), ended.answer)))
    assert seen == [(True, "answer")]
    native.wake_waiters()
    assert seen == [(True, "answer")]


def test_a_batch_that_is_finished_twice_is_answered_once():
    queue = native.Queue(10)
    slot = queue.add_slot()
    for count in (3, 1):
        tickets = [native.Ticket(str(number), 1, 0, nbytes=10) for number in range(count)]
        late = native.Ticket("late", 1, 0, nbytes=10)
        for ticket in (*tickets, late):
            assert queue.push(ticket) == native.OK
        batch = queue.take(slot, 10, 10)
        assert late.cancel()
        assert queue.finish(batch[:1], ["first"]) == [True]
        assert queue.finish(batch, ["second"] * len(batch)) == [False, *[True] * (count - 1), False]
        assert queue.finish(batch, ["third"] * len(batch)) == [False] * len(batch)
        assert queue.start(batch) == []
        assert [ticket.answer for ticket in tickets] == ["first", *["second"] * (count - 1)]
        assert (queue.open, queue.waiting, PROCESS.held) == (0, 0, 0)
