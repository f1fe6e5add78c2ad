import os

import pytest

from ksrv.server.shared.worker_table import CAPACITY, State, shared_table


@pytest.fixture
def table():
    return shared_table()


def ready(table, slot):
    table.workers[slot].state = State.READY
    table.workers[slot].accepting = True


def test_only_the_first_worker_accepts_while_it_loads(table):
    first, second = table.allocate(), table.allocate()
    assert table.workers[first].accepting
    assert not table.workers[second].accepting
    assert not table.may_accept(second)


def test_a_ready_worker_waits_for_one_that_accepts_and_still_loads(table):
    first, second = table.allocate(), table.allocate()
    table.workers[second].state = State.READY
    assert not table.may_accept(second)
    table.workers[first].state = State.READY
    assert table.may_accept(second)


def test_a_replacement_that_loads_leaves_the_work_to_one_that_is_about_to_accept(table):
    first, second = table.allocate(), table.allocate()
    ready(table, first)
    table.workers[second].state = State.READY
    table.release(first)  # killed before the second worker has read the table
    replacement = table.allocate()
    assert not table.workers[replacement].accepting
    assert not table.may_accept(replacement)
    assert table.may_accept(second)
    table.release(second)
    assert table.may_accept(replacement)


def test_a_replacement_that_failed_leaves_the_work_to_those_that_serve(table):
    old = table.allocate()
    ready(table, old)
    table.generation += 1
    new = table.allocate()
    table.workers[new].state = State.FAILED
    table.workers[old].state = State.RETIRING
    assert not table.may_accept(new)
    assert not table.replaced(0, by_failed=False)
    table.release(old)
    assert table.may_accept(new)


def test_a_generation_is_replaced_when_as_many_newer_ones_are_ready(table):
    table.target_count = 2
    old = table.allocate()
    ready(table, old)
    table.generation += 1
    new = [table.allocate(), table.allocate()]
    assert not table.replaced(0, by_failed=False)
    ready(table, new[0])
    table.workers[new[1]].state = State.READY
    assert not table.replaced(0, by_failed=False)
    table.workers[new[1]].accepting = True
    assert table.replaced(0, by_failed=False)
    assert not table.replaced(1, by_failed=False)


def test_a_failed_generation_may_be_replaced_by_a_failed_one(table):
    old = table.allocate()
    table.workers[old].state = State.FAILED
    table.generation += 1
    table.workers[table.allocate()].state = State.FAILED
    assert table.replaced(0, by_failed=True)


def test_beside_another_master_only_a_ready_worker_accepts(table):
    table.beside_another = True
    slot = table.allocate()
    assert not table.workers[slot].accepting
    assert not table.may_accept(slot)
    table.workers[slot].state = State.FAILED
    assert not table.may_accept(slot)
    table.beside_another = False  # the other master is gone, and no worker is better
    assert table.may_accept(slot)
    table.beside_another = True
    table.workers[slot].state = State.READY
    assert table.may_accept(slot)


def test_a_worker_may_leave_to_another_once_that_serves(table):
    first, second = table.allocate(), table.allocate()
    ready(table, first)
    assert table.served_by_another(first) is None  # the second is loading
    table.workers[second].state = State.READY
    assert table.served_by_another(first) is None  # and does not accept yet
    table.workers[second].accepting = True
    assert table.served_by_another(first) is True
    table.workers[first].state = State.RETIRING
    assert table.served_by_another(second) is False
    table.workers[first].state = State.FAILED
    assert table.served_by_another(second) is False


def test_a_reload_has_succeeded_once_all_of_its_workers_are_ready(table):
    table.target_count = 2
    assert table.reload_successful and table.last_reload == 0
    old = table.allocate()
    ready(table, old)
    table.note_reload(accepted=True)
    table.generation += 1
    assert not table.reload_successful and table.last_reload > 0
    for slot in (table.allocate(), table.allocate()):
        table.end_reload()
        assert not table.reload_successful
        ready(table, slot)
    table.end_reload()
    assert table.reload_successful
    table.note_reload(accepted=False)
    table.end_reload()
    assert not table.reload_successful


def test_the_table_is_full_at_its_capacity(table):
    for _ in range(CAPACITY):
        table.allocate()
    with pytest.raises(RuntimeError, match=str(CAPACITY)):
        table.allocate()


def test_a_forked_process_sees_and_writes_the_same_table(table):
    slot = table.allocate()
    child = os.fork()
    if child == 0:
        table.workers[slot].state = State.READY
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert table.workers[slot].state == State.READY
