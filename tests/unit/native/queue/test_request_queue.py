"""Handles and queues: waiting, signals, misuse, forks, and many deadlines."""

import ctypes
import itertools
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from ksrv._native.queue import request_queue as native
from ksrv._native.queue.request_handle import NativeHandle, wake_waiters
from tests.support.wait_until import wait_until


class Interrupted(Exception):
    """Raised by a signal handler."""


@pytest.fixture
def alarm():
    """Return a function that soon starts sending signals to this process, and the handler to set."""
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


def interrupting(handle):
    """Wait until a handle is in its queue before raising, because a signal may come before the main thread waits."""

    def act(*_):
        if handle.state == "queued":
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise Interrupted

    return act


def test_a_signal_handler_runs_while_a_handle_is_waited_for(alarm):
    queue = native.Queue(10)
    handle = NativeHandle("a", 1, 0)
    queue.push(handle)
    called = alarm()

    def finish():
        while len(called) < 2:
            time.sleep(0.001)
        queue.finish(queue.take(0, 1, 1), ["answer"])

    queue.add_slot()
    thread = threading.Thread(target=finish)
    thread.start()
    assert handle.join() and handle.answer == "answer"
    thread.join()
    assert len(called) >= 2


def test_exception_of_a_signal_handler_ends_the_wait(alarm):
    queue = native.Queue(10)
    handle = NativeHandle("a", 1, 0)
    queue.push(handle)

    def wait():
        alarm(interrupting(handle))
        return handle.join()

    with pytest.raises(Interrupted):
        wait()
    assert handle.state == "queued", "the request still waits"
    assert handle.cancel()


@pytest.mark.parametrize("ends", ["inline", "queued"])
def test_unused_priority_uses_no_memory(ends):
    """Each request may name another of 2^32 priorities, and each search for a batch visits all lines."""
    queue = native.Queue(2)
    slot = queue.add_slot()
    queue.inline_for_all = ends == "inline"
    if ends == "inline":
        thread = threading.Thread(target=lambda: queue.take(slot, 1, 1))
        thread.start()
        while queue.idle == 0:
            time.sleep(0.001)
    for priority in range(1, 101):
        handle = NativeHandle("a", 1, 0, priority)
        if ends == "inline":
            assert queue.push_inline(handle) == -1 - slot
            assert queue.finish([handle], ["mine"]) == [True]
            queue.return_slot(slot)
        else:
            assert queue.push(handle) == native.OK and queue.lines >= 1
            assert handle.cancel()
    assert queue.lines <= 1
    queue.close()
    if ends == "inline":
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.skipif(
    "asan" in os.environ.get("LD_PRELOAD", ""),
    reason="the sanitizer's allocator may be locked by another thread when the process forks",
)
def test_deadlines_are_watched_in_a_forked_child():
    script = """
import os, time
from ksrv._native.queue import request_queue as native
from ksrv._native.queue.request_handle import NativeHandle, wake_completions, wake_waiters

def expires():
    queue = native.Queue(10)
    pushed = native.EXPIRED  # where this process rested for so long in between
    while pushed == native.EXPIRED:
        handle = NativeHandle("a", 1, 0, 0, time.monotonic_ns() + 20_000_000)
        pushed = queue.push(handle)
    assert pushed == native.OK
    return handle.join(time.monotonic_ns() + 20_000_000_000) and handle.state == "expired"

assert expires()
child = os.fork()
if child == 0:
    raise SystemExit(0 if expires() else 1)
assert os.waitpid(child, 0)[1] == 0
assert expires()
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


@pytest.mark.skipif(
    "asan" in os.environ.get("LD_PRELOAD", ""),
    reason="the sanitizer's allocator may be locked by another thread when the process forks",
)
def test_batches_are_taken_in_a_child_that_was_forked_while_another_thread_waited_for_the_gil():
    script = """
import os, signal, sys, threading
from ksrv._native.queue import request_queue as native
from ksrv._native.queue.request_handle import NativeHandle

def take(queue):
    return queue.take(queue.add_slot(), 1, 0)

sys.setswitchinterval(100)  # threads keep the GIL until they wait
queue = native.Queue(10)
threading.Thread(target=take, args=(queue,), daemon=True).start()
queue.push(NativeHandle("a", 1, 0))
sum(range(3_000_000))  # meanwhile the other thread begins to wait for the GIL
child = os.fork()
if child == 0:
    signal.alarm(20)
    other = native.Queue(10)
    other.push(NativeHandle("b", 1, 0))
    os._exit(0 if [one.request for one in take(other)] == ["b"] else 1)
assert os.waitpid(child, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_a_callback_added_before_the_waiters_are_woken_is_called():
    queue = native.Queue(4)
    slot = queue.add_slot()
    handle = NativeHandle("request", 1, 1)
    assert queue.push(handle) == native.OK
    queue.finish(queue.start(queue.take(slot, 1, 0)), ["answer"], True)
    seen = []
    handle.add_done_callback(lambda ended: seen.append((ended.done(), ended.answer)))
    assert seen == [(True, "answer")]
    wake_waiters()
    assert seen == [(True, "answer")]


@pytest.mark.parametrize("end", ["cancel", "join"])
def test_callbacks_that_end_or_wait_for_further_handles_run_one_after_the_other(end):
    queue = native.Queue(3000)
    handles = [NativeHandle("a", 1, 0) for _ in range(3000)]
    following = dict(itertools.pairwise(handles))
    running, deepest, called = 0, 0, []

    def end_next(handle):
        nonlocal running, deepest
        running += 1
        deepest = max(deepest, running)
        if handle in following:
            following[handle].cancel()
            if end == "join":
                assert following[handle].join()
        called.append(handle)
        running -= 1

    for handle in handles:
        handle.add_done_callback(end_next)
        assert queue.push(handle) == native.OK
    assert handles[0].cancel()
    assert called == handles and deepest == 1
    assert (queue.open, queue.waiting) == (0, 0)


@pytest.mark.parametrize("drop", ["start", "finish"])
def test_a_handle_that_its_batch_drops_before_the_completions_are_handled_is_called_back(drop):
    queue = native.Queue(4)
    slot = queue.add_slot()
    assert queue.push(NativeHandle("in a batch", 1, 0)) == native.OK
    batch = queue.take(slot, 1, 1)
    if drop == "finish":
        queue.start(batch)
    states = []
    batch[0].add_done_callback(lambda ended: states.append(ended.state))
    other = NativeHandle("other", 1, 0)

    def end_batch(_):
        batch[0].cancel()
        if drop == "start":
            assert queue.start(batch) == []
        else:
            assert queue.finish(batch, ["late"]) == [False]
        batch.clear()

    other.add_done_callback(end_batch)
    assert queue.push(other) == native.OK
    assert other.cancel()
    assert states == ["cancelled"]


def test_busy_instances_take_turns_with_the_gil():
    """Without the gate in front of the GIL, a thread would keep the GIL for the switch interval, an hour."""
    held_gil = ctypes.PyDLL(None)
    queue, ran = native.Queue(40), []
    handles = [NativeHandle("a", 1, 0) for _ in range(40)]

    def serve(slot):
        while taken := queue.take(slot, 1, 0):
            ran.append(slot)
            held_gil.usleep(3000)  # another thread wakes up meanwhile
            queue.finish(taken, ["a"])

    threads = [threading.Thread(target=serve, args=(queue.add_slot(),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    wait_until(lambda: queue.idle == 3)
    before = sys.getswitchinterval()
    try:
        sys.setswitchinterval(3600)
        for handle in handles:
            queue.push(handle)
        queue.close()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert len(ran) == 40
    assert sum(earlier == later for earlier, later in itertools.pairwise(ran)) < 4


def test_idle_instance_takes_a_request_without_the_gil():
    held_gil = ctypes.PyDLL(None)
    queue = native.Queue(1)
    handle = NativeHandle("a", 1, 0)
    batches = []
    thread = threading.Thread(target=lambda: batches.append(queue.take(slot, 1, 0)))
    slot = queue.add_slot()
    thread.start()
    wait_until(lambda: queue.idle == 1)
    before = sys.getswitchinterval()
    try:
        sys.setswitchinterval(3600)  # this thread keeps the GIL until it joins the other
        queue.push(handle)
        for _ in range(10_000):
            if queue.idle == 0:
                break
            held_gil.usleep(1000)
        assert queue.idle == 0
        assert not batches
        thread.join()
    finally:
        sys.setswitchinterval(before)
    assert batches == [[handle]]
