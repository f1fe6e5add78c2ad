"""The buffer pool as a state machine: leases, views, releases, trims and caps in any order."""

import gc

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from ksrv._native.memory import buffer_pool
from tests.support.examples import examples

CAP = 1 << 20


class Leases(RuleBasedStateMachine):
    """Every live view holds bytes that nobody else can reach or change."""

    views = Bundle("views")

    def __init__(self) -> None:
        super().__init__()
        buffer_pool.configure(cap_bytes=CAP, idle_seconds=30)
        buffer_pool.trim()
        self.before = buffer_pool.statistics()["leased"]
        self.live: dict[int, tuple[np.ndarray, int]] = {}
        self.next = 0

    @rule(
        target=views,
        nbytes=st.one_of(st.integers(0, 300), st.integers(0, 300_000)),
        memfd=st.booleans(),
        offset=st.integers(0, 64),
    )
    def lease(self, nbytes, memfd, offset):
        block = buffer_pool.lease(nbytes, memfd=memfd)
        offset = min(offset, nbytes)
        view = buffer_pool.array(block, "u1", (nbytes - offset,), offset)
        assert block.address % 64 == 0 and len(block) == nbytes
        assert (block.fd >= 0) == memfd
        mark = self.next % 251 + 1
        view[...] = mark
        self.next += 1
        self.live[self.next] = view, mark
        return self.next

    @rule(target=views, key=views)
    def view_again(self, key):
        if key not in self.live:
            return key
        view, mark = self.live[key]
        self.next += 1
        self.live[self.next] = view[::3], mark
        return self.next

    @rule(key=consumes(views))
    def drop(self, key):
        self.live.pop(key, None)

    @rule(cap=st.sampled_from([0, 4096, CAP]))
    def bound(self, cap):
        buffer_pool.configure(cap_bytes=cap)

    @rule()
    def trim(self):
        buffer_pool.trim()
        assert buffer_pool.statistics()["pooled_bytes"] == 0

    @invariant()
    def nothing_is_lost_or_shared(self):
        for view, mark in self.live.values():
            assert (view == mark).all()
        blocks = {id(view.base) if view.base.__class__ is buffer_pool.Block else id(view.base.base)
                  for view, _ in self.live.values()}  # fmt: skip
        statistics = buffer_pool.statistics()
        assert statistics["leased"] - self.before == len(blocks)
        assert statistics["pooled_bytes"] <= statistics["cap"]
        assert (statistics["pooled"] == 0) == (statistics["pooled_bytes"] == 0)

    def teardown(self):
        self.live.clear()
        assert buffer_pool.statistics()["leased"] == self.before
        buffer_pool.configure(cap_bytes=256 << 20)
        buffer_pool.trim()


class TestLeases(Leases.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        gc.collect()  # what other tests have leased and left in circles is counted no more


TestLeases.settings = examples(60, stateful_step_count=40)
