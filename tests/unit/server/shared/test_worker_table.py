import pytest

from ksrv.server.shared.worker_table import CAPACITY, State, shared_table


@pytest.fixture
def table():
    return shared_table()


def ready(table, slot):
    table.workers[slot].state = State.READY
    table.workers[slot].accepting = True


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


def test_the_table_is_full_at_its_capacity(table):
    for _ in range(CAPACITY):
        table.allocate()
    with pytest.raises(RuntimeError, match=str(CAPACITY)):
        table.allocate()
