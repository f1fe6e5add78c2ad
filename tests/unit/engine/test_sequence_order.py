"""The order of requests in sequences, with cancelled, late and concurrent requests."""

import gc
import random
import threading
import time
import weakref
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import pytest

from ksrv.errors import KsrvError, SequenceEnded
from ksrv.model.config import JoinPolicy
from ksrv.model.spec import SequenceLimits
from ksrv.request import ExecutorOutputs
from tests.support.engine.engine_models import FunctionExecutor, engine, request, source, tensor
from tests.support.wait_until import wait_until


class Recording(FunctionExecutor):
    """Records which requests of which sequences it ran, and which states it has."""

    def __init__(self, one, pace):
        super().__init__(one, self.note)
        self.pace = pace
        self.batches = []
        self.states = set()
        self.dropped = set()

    def note(self, batch):
        parts = [(one.sequence, one.id) for one in batch.requests]
        for part, _ in parts:
            if part is not None and part.start:
                self.states.add(part.number)
                # A client may leave, and its sequence end, while the batch of its first request begins.
                if part.number in self.dropped:
                    self.states.discard(part.number)
        self.batches.append(parts)
        self.pace()
        return ExecutorOutputs([tensor("y", batch.tensors["x"].data * 2)])

    def end_sequences(self, numbers):
        self.dropped.update(numbers)
        self.states.difference_update(numbers)


def recorded(pace, *, instances=1, queue_size=10_000, **settings):
    executors = []

    def make(one, number, threads):
        executors.append(Recording(one, pace))
        return executors[-1]

    limits = SequenceLimits(**settings)
    model = source(
        sequences=limits,
        instances=instances,
        queue_size=queue_size,
        batching=JoinPolicy(max_batch_size=4),
    )
    return engine(model, make=make), executors


def asked(name, *, start=False, end=False, **fields):
    parameters = {"sequence_id": name, "sequence_start": start, "sequence_end": end}
    return request(parameters=parameters, **fields)


@pytest.mark.parametrize("seed", range(8))
def test_any_order_of_events_keeps_the_sequence_order(seed):
    rng = random.Random(seed)
    made, executors = recorded(
        lambda: time.sleep(rng.choice((0, 0, 0.0005))), instances=rng.choice((1, 2, 3)), max=50
    )
    handles = []
    order = defaultdict(list)
    lock = threading.Lock()

    def client(number):
        own = random.Random(1000 * seed + number)
        name, first = number + 1, True
        for step in range(40):
            start = first or own.random() < 0.05
            end = own.random() < 0.1
            late = own.random() < 0.15
            due = time.monotonic_ns() + own.randrange(10_000, 2_000_000) if late else None
            one = asked(name, start=start, end=end, deadline_ns=due, id=f"{number} {step}")
            try:
                handle = made.submit(one, allow_inline=own.random() < 0.5)
            except KsrvError:
                first = True  # the deadline had passed, or the sequence had ended
                continue
            first = end
            with lock:
                order[one.sequence.number].append((one.id, start))
                handles.append(handle)
            if own.random() < 0.1:
                handle.cancel()
            if own.random() < 0.5:
                handle.join()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(client, range(6)))
    for handle in handles:
        assert handle.join(time.monotonic_ns() + 60_000_000_000)

    ran = defaultdict(list)
    for place, executor in enumerate(executors):
        for parts in executor.batches:
            numbers = [part.number for part, _ in parts]
            assert len(set(numbers)) == len(numbers), "a batch has two requests of a sequence"
            for part, name in parts:
                ran[part.number].append((place, name))
    for number, found in ran.items():
        assert len({place for place, _ in found}) == 1, "a sequence changed its instance"
        pushed = [name for name, _ in order[number]]
        places = [pushed.index(name) for _, name in found]
        assert places == sorted(set(places)), "requests overtook each other, or ran twice"
        assert places[0] == 0, "a sequence went on whose first request was not run"

    table = made.find("m").sequences
    wait_until(lambda: all(one.requests == 0 for one in table._open.values()))
    still_open = {one.number for one in table._open.values()}
    wait_until(lambda: set().union(*(one.states for one in executors)) == still_open)
    assert len(order) == table.open + sum(table.ended.values())
    made.close()


def test_a_refused_request_does_not_keep_its_sequence_open():
    hold = threading.Event()
    made, [executor] = recorded(lambda: hold.wait(60), queue_size=1, idle_timeout_ms=30)
    first = made.submit(asked("a", start=True))
    wait_until(lambda: executor.batches)
    waiting = made.submit(asked("a"))
    for number in range(5):
        deadline = time.monotonic_ns() + 20_000_000 if number % 2 else None
        # On a busy machine a deadline may have passed when its request arrives.
        with pytest.raises(KsrvError, match=r"the queue of the model m is full|had passed"):
            made.submit(asked("a", deadline_ns=deadline))
    table = made.find("m").sequences
    time.sleep(0.05)  # the refused requests' deadlines pass
    assert table.open == 1
    hold.set()
    for one in (first, waiting):
        one.wait()
    wait_until(lambda: table.open == 0)
    assert table.ended["idle_timeout"] == 1
    made.close()


def test_close_fails_requests_behind_a_hanging_handler():
    hold = threading.Event()
    made, [executor] = recorded(lambda: hold.wait(60))
    first = made.submit(asked("a", start=True))
    wait_until(lambda: executor.batches)
    held = [made.submit(asked("a")) for _ in range(3)]
    made.close(timeout=0.05)
    for one in held:
        with pytest.raises(KsrvError, match="unloaded"):
            one.wait()
    hold.set()
    assert first.join(time.monotonic_ns() + 60_000_000_000)


def test_error_does_not_keep_the_refused_request_alive():
    made, _ = recorded(lambda: None, idle_timeout_ms=30)
    made.submit(asked("idle", start=True)).wait()
    table = made.find("m").sequences
    wait_until(lambda: table.open == 0)
    refused = [asked("idle") for _ in range(3)]
    for one in refused:
        with pytest.raises(SequenceEnded, match="no request came for it in time"):
            made.submit(one)
    kept = [weakref.ref(one.inputs[0].data) for one in refused]
    del refused, one
    gc.collect()
    assert [one() for one in kept] == [None] * 3
    made.close()
