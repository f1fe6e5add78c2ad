"""The memory budget of a process: its limit, the part for small requests, and answers outside of the limit."""

import pytest

from ksrv._native.memory.memory_budget import SMALL_REQUEST, SMALL_SHARE, MemoryBudget

BOUND = 64 << 20


def test_part_of_the_budget_is_reserved_for_small_requests():
    assert (SMALL_REQUEST, SMALL_SHARE) == (1 << 20, 8)
    budget = MemoryBudget(BOUND)
    kept = BOUND // SMALL_SHARE
    assert budget.most() == BOUND - kept
    assert budget.most(small=True) == BOUND
    assert budget.reserve(BOUND - kept)
    assert not budget.reserve(1)
    assert budget.reserve(SMALL_REQUEST, small=True)
    assert budget.reserve(kept - SMALL_REQUEST, small=True)
    assert not budget.reserve(1, small=True)


def test_single_answer_may_exceed_the_limit():
    budget = MemoryBudget(BOUND)
    assert budget.reserve(1000)
    first = budget.reserve_answer(2 * BOUND)
    assert first is not None
    assert budget.held == 1000 + 2 * BOUND
    assert budget.reserve_answer(2 * BOUND) is None
    second = budget.reserve_answer(BOUND // 2)  # it fits, and does not block other requests
    assert second is not None and budget.reserve(1000)
    first.close()
    first.close()
    assert budget.held == 2000 + BOUND // 2
    assert budget.reserve_answer(2 * BOUND) is not None  # and given back at once
    del second
    assert budget.held == 2000


def test_a_small_answer_may_use_the_share_of_small_requests():
    kept_free = BOUND - BOUND // SMALL_SHARE
    for nbytes, answers in (
        (SMALL_REQUEST, 2),
        (SMALL_REQUEST + 1, 1),
    ):  # the larger answer is counted outside of the limit
        budget = MemoryBudget(BOUND)
        assert budget.reserve(kept_free)
        held = [budget.reserve_answer(nbytes) for _ in range(2)]
        assert [one is not None for one in held] == [True, answers == 2]
        assert budget.held == kept_free + answers * nbytes


@pytest.mark.parametrize("nbytes", [BOUND + 1, (1 << 64) - 1])
def test_reservation_above_the_limit_is_refused(nbytes):
    budget = MemoryBudget(BOUND)
    assert budget.reserve(1)
    assert not budget.reserve(nbytes, small=True)
    assert not budget.reserve(nbytes)
    assert budget.held == 1
