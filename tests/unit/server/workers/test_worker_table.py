import os

import pytest

from ksrv.server.workers.worker_table import CAPACITY, State, Stop, WorkerSlots


@pytest.fixture
def slots():
    return WorkerSlots()


def ready(slots, slot):
    slots.mark(slot, State.READY)
    slots.set_accepting(slot, True)


def test_only_the_first_worker_accepts_while_it_loads(slots):
    first, second = slots.take(), slots.take()
    assert slots.accepting(first)
    assert not slots.accepting(second)
    assert not slots.may_accept(second)


def test_a_ready_worker_waits_for_one_that_accepts_and_still_loads(slots):
    first, second = slots.take(), slots.take()
    slots.mark(second, State.READY)
    assert not slots.may_accept(second)
    slots.mark(first, State.READY)
    assert slots.may_accept(second)


def test_a_worker_accepts_when_nobody_else_is_left(slots):
    first, second = slots.take(), slots.take()
    slots.free(first)
    assert slots.may_accept(second)


def test_a_replacement_that_failed_leaves_the_work_to_those_that_serve(slots):
    old = slots.take()
    ready(slots, old)
    slots.next_generation()
    new = slots.take()
    slots.mark(new, State.FAILED)
    slots.mark(old, State.RETIRING)
    assert not slots.may_accept(new)
    assert not slots.replaced(0, by_failed=False)
    slots.free(old)
    assert slots.may_accept(new)


def test_a_generation_is_replaced_when_as_many_newer_ones_are_ready(slots):
    slots.wanted = 2
    old = slots.take()
    ready(slots, old)
    slots.next_generation()
    new = [slots.take(), slots.take()]
    assert not slots.replaced(0, by_failed=False)
    ready(slots, new[0])
    slots.mark(new[1], State.READY)
    assert not slots.replaced(0, by_failed=False)
    slots.set_accepting(new[1], True)
    assert slots.replaced(0, by_failed=False)
    assert not slots.replaced(1, by_failed=False)


def test_a_failed_generation_may_be_replaced_by_a_failed_one(slots):
    old = slots.take()
    slots.mark(old, State.FAILED)
    slots.next_generation()
    slots.mark(slots.take(), State.FAILED)
    assert slots.replaced(0, by_failed=True)


def test_a_quick_stop_stays_quick(slots):
    assert slots.stopping is Stop.NOT
    slots.begin_stop(Stop.QUICK)
    slots.begin_stop(Stop.ORDERLY)
    assert slots.stopping is Stop.QUICK


def test_a_reload_has_succeeded_once_all_of_its_workers_are_ready(slots):
    slots.wanted = 2
    assert slots.last_reload_successful and slots.last_reload == 0
    old = slots.take()
    ready(slots, old)
    slots.note_reload(accepted=True)
    slots.next_generation()
    assert not slots.last_reload_successful and slots.last_reload > 0
    for slot in (slots.take(), slots.take()):
        slots.end_reload()
        assert not slots.last_reload_successful
        ready(slots, slot)
    slots.end_reload()
    assert slots.last_reload_successful
    slots.note_reload(accepted=False)
    slots.end_reload()
    assert not slots.last_reload_successful


def test_a_freed_slot_is_taken_again(slots):
    first = slots.take()
    slots.free(first)
    assert slots.take() == first


def test_the_table_is_full_at_its_capacity(slots):
    for _ in range(CAPACITY):
        slots.take()
    with pytest.raises(RuntimeError, match=str(CAPACITY)):
        slots.take()


def test_a_forked_process_sees_and_writes_the_same_table(slots):
    slot = slots.take()
    child = os.fork()
    if child == 0:
        slots.mark(slot, State.READY)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert slots.state(slot) is State.READY
