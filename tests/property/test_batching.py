"""The batcher against a simple model: random arrivals, shapes, deadlines, cancellations, failures.

In any case, each request ends exactly once: with its data, with the error that its handler
gave it, or as expired or cancelled; no batch mixes batch keys or breaks its limits; nothing is left.
"""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from ksrv._native.memory import memory_budget
from ksrv._native.queue import request_queue as native
from ksrv._native.queue.request_handle import NativeHandle, wake_completions, wake_waiters
from tests.support.examples import examples

MILLISECOND = 1_000_000


class Request:
    """The request of a handle; the answer must name it."""

    def __init__(self, number, fails):
        self.number = number
        self.fails = fails


class Instance(threading.Thread):
    """Takes batches as an engine's instance does, and checks each against the limits."""

    def __init__(self, queue, room, most, delay_ns, work_s, ready):
        super().__init__()
        self.queue, self.room, self.most, self.delay_ns = queue, room, most, delay_ns
        self.work_s = work_s
        self.ready = ready
        self.slot = queue.add_slot()
        self.faults = []
        self.ran = []

    def run(self):
        while True:
            taken = self.queue.take(self.slot, self.room, self.most, self.delay_ns)
            if taken is None:
                break
            self.batch(self.ready.pop(0) if taken is True else taken, True)
        wake_waiters()

    def batch(self, handles, later):
        self.check(handles)
        alive = self.queue.start(handles)
        if self.work_s:
            time.sleep(self.work_s)
        for handle in alive:
            self.ran.append(handle.request.number)
        answers = [
            ValueError(one.request.number) if one.request.fails else one.request.number
            for one in alive
        ]
        self.queue.finish(alive, answers, later)

    def check(self, handles):
        if len({handle.batch_key for handle in handles}) > 1:
            self.faults.append("batch keys were mixed")
        if len(handles) > self.room:
            self.faults.append("more requests than the batch has room for")
        if len(handles) > 1 and sum(handle.rows for handle in handles) > self.most:
            self.faults.append("more rows than the limit of a batch")


class Prefetcher(threading.Thread):
    """Prefetches as the engine does."""

    def __init__(self, queue, room, most, delay_ns, ready):
        super().__init__()
        self.queue, self.room, self.most, self.delay_ns = queue, room, most, delay_ns
        self.ready = ready
        self.faults = []

    def run(self):
        while (taken := self.queue.prefetch(self.room, self.most)) is not None:
            batch = []
            while taken is not True:
                batch += taken
                rows = sum(handle.rows for handle in batch)
                oldest = batch[0].enqueued_ns
                room = self.room - len(batch)
                if room == 0:
                    rows = max(rows, self.most)
                taken = self.queue.prefetch(max(room, 1), self.most, rows, oldest, self.delay_ns)
            self.ready.append(batch)
            self.queue.close_open_batch(True)


arrivals = st.lists(
    st.fixed_dictionaries(
        {
            "rows": st.integers(1, 5),
            "batch_key": st.integers(0, 2),
            "priority": st.sampled_from([0, 0, 0, 1, 2]),
            "deadline_ms": st.sampled_from([None, None, 0, 1, 3, 1000]),
            "pause_ms": st.sampled_from([0, 0, 0, 0.2, 1]),
            "fails": st.booleans(),
            "cancel": st.sampled_from([False, False, False, True]),
            "inline": st.booleans(),
        }
    ),
    min_size=1,
    max_size=30,
)


@examples(60, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    arrivals=arrivals,
    capacity=st.sampled_from([1, 3, 100]),
    room=st.sampled_from([1, 3, 64]),
    most=st.integers(1, 6),
    delay_ms=st.sampled_from([0, 0, 1, 5]),
    work_ms=st.sampled_from([0, 0.3, 2]),
    instances=st.integers(1, 3),
    ahead=st.booleans(),
    producers=st.integers(1, 2),
)
def test_every_request_ends_exactly_once(
    arrivals, capacity, room, most, delay_ms, work_ms, instances, ahead, producers
):
    queue = native.Queue(capacity, "property")
    queue.may_prefetch = ahead
    queue.inline_for_all = delay_ms == 0
    delay_ns = int(delay_ms * MILLISECOND)
    ready = []
    workers = [
        Instance(queue, room, most, delay_ns, work_ms / 1000, ready) for _ in range(instances)
    ]
    threads = list(workers)
    if ahead:
        threads.append(Prefetcher(queue, room, most, delay_ns, ready))
    for thread in threads:
        thread.start()

    accepted, refused, ended = {}, {}, []

    def produce(share):
        for number, one in share:
            deadline = one["deadline_ms"]
            handle = NativeHandle(
                Request(number, one["fails"]),
                one["rows"],
                one["batch_key"],
                one["priority"],
                None if deadline is None else time.monotonic_ns() + deadline * MILLISECOND,
                100,
            )
            handle.add_done_callback(lambda handle, number=number: ended.append(number))
            pushed = queue.push_inline(handle) if one["inline"] else queue.push(handle)
            if pushed < 0:
                slot = -1 - pushed
                workers[slot].batch([handle], False)
                queue.return_slot(slot)
            if pushed <= native.OK:
                accepted[number] = handle
                if one["cancel"]:
                    handle.cancel()
            else:
                refused[number] = pushed
            time.sleep(one["pause_ms"] / 1000)

    numbered = list(enumerate(arrivals))
    with ThreadPoolExecutor(producers) as pool:
        list(pool.map(produce, [numbered[index::producers] for index in range(producers)]))
    queue.close()
    assert queue.wait_empty(time.monotonic_ns() + 20_000 * MILLISECOND), repr(queue)
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()

    assert not [fault for worker in workers for fault in worker.faults]
    ran = [number for worker in workers for number in worker.ran]
    assert len(ran) == len(set(ran)), "a request ran twice"
    for number, handle in accepted.items():
        assert handle.join(time.monotonic_ns() + 5_000 * MILLISECOND)
        one = arrivals[number]
        if handle.state == "answered":
            assert number in ran
            if one["fails"]:
                assert isinstance(handle.answer, ValueError) and handle.answer.args == (number,)
            else:
                assert handle.answer == number
        elif handle.state == "expired":
            assert one["deadline_ms"] is not None
            assert handle.ended_ns >= handle.deadline_ns
            assert handle.ended_running == (number in ran)
        else:
            assert handle.state == "cancelled" and one["cancel"]
            assert handle.ended_running == (number in ran)
    for number, pushed in refused.items():
        one = arrivals[number]
        if pushed == native.EXPIRED:
            assert one["deadline_ms"] is not None
        else:
            assert pushed == native.FULL and capacity < len(arrivals)
    assert sorted(ended) == sorted(accepted), "each callback comes once"
    assert memory_budget.PROCESS.held == 0
    assert queue.open == 0 and queue.waiting == 0


def test_full_group_is_taken_before_older_waiting_group():
    queue = native.Queue(100, "groups")
    queue.push(NativeHandle("a", 1, 0))
    for _ in range(2):
        queue.push(NativeHandle("b", 1, 1))
    slot = queue.add_slot()
    taken = queue.take(slot, 100, 2, 60_000 * MILLISECOND)
    assert [handle.request for handle in taken] == ["b", "b"]
    queue.finish(taken, [None] * 2)
    queue.close()
    left = queue.take(slot, 100, 2, 60_000 * MILLISECOND)
    assert [handle.request for handle in left] == ["a"]
    queue.finish(left, [None])
    assert queue.take(slot, 100, 2) is None


def test_oldest_request_waits_at_most_the_delay():
    queue = native.Queue(100, "delay")
    handle = NativeHandle("a", 1, 0)
    queue.push(handle)
    taken = queue.take(queue.add_slot(), 100, 8, 30 * MILLISECOND)
    queue.start(taken)
    assert handle.started_ns - handle.enqueued_ns >= 30 * MILLISECOND
    queue.finish(taken, [None])


def test_ended_handle_is_freed():
    import gc
    import weakref

    queue = native.Queue(100, "free")

    def pushed():
        """A handle in the queue: one whose deadline passed before is not taken, and never ends."""
        while True:
            handle = NativeHandle("a", 1, 0, 0, time.monotonic_ns() + 5 * MILLISECOND)
            if queue.push(handle) == native.OK:
                return handle

    handles = [pushed() for _ in range(3)]
    gone = [weakref.ref(handle) for handle in handles]
    handles[-1].join()
    handles.clear()
    deadline = time.monotonic() + 60
    while any(one() is not None for one in gone) and time.monotonic() < deadline:
        wake_completions()
        gc.collect()
        pushed().join()
    assert all(one() is None for one in gone)
