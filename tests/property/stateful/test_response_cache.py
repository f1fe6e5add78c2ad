"""The response cache beside a dictionary: what is kept, found, outdated and forgotten, with a simulated clock."""

from collections import OrderedDict

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ksrv.engine.requests import response_cache
from ksrv.engine.requests.response_cache import ResponseCache
from ksrv.model.config import Cache
from ksrv.request import InferRequest, InferResponse, Tensor
from tests.support.examples import examples

ENTRIES, BYTES, TTL_S = 3, 160, 10.0
NUMBERS = st.integers(0, 4)
SIZES = st.integers(0, 8) | st.integers(0, 45)
"""Small answers fill the entries, large answers the bytes."""
SELDOM = st.integers(0, 7).map(lambda drawn: drawn == 7)
"""Operations that empty the cache are rare, so that most lookups find something."""


class Clock:
    """Stands in the cache's module for `time`."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


def asked(number: int, name: str) -> InferRequest:
    data = np.full((1, 2), number, np.float32)
    return InferRequest("m", id=name, inputs=[Tensor("x", "FP32", (1, 2), data)])


class CacheMachine(RuleBasedStateMachine):
    """One cache of three answers or 160 bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        response_cache.time = self.clock  # type: ignore[assignment]
        self.cache = ResponseCache(Cache(entries=ENTRIES, bytes=BYTES, ttl_s=TTL_S))
        self.known: OrderedDict[int, tuple[float, int, int]] = OrderedDict()  # until, floats, mark
        self.suspended = False
        self.generation = 0
        self.marks = 0

    def teardown(self) -> None:
        import time

        response_cache.time = time

    @rule(number=NUMBERS, size=SIZES, headers=SELDOM, outdated=SELDOM)
    def keep(self, number: int, size: int, headers: bool, outdated: bool) -> None:
        generation = self.generation - int(outdated)
        self.marks += 1
        values = np.full((1, size), self.marks, np.float32)
        answer = InferResponse("m", "", f"id {number}", [Tensor("y", "FP32", (1, size), values)])
        if headers:
            answer.headers["x-user"] = "alice"
        key = self.cache.key(asked(number, "a"))
        assert key is not None
        self.cache.keep(key, generation, answer)
        values[:] = -1  # the cache has a copy
        if 4 * size > BYTES or headers or self.suspended or generation != self.generation:
            return
        self.known.pop(number, None)
        self.known[number] = self.clock.now + TTL_S, size, self.marks
        while len(self.known) > ENTRIES or self.nbytes > BYTES:
            self.known.popitem(last=False)

    @rule(number=NUMBERS, name=st.text(max_size=3))
    def find(self, number: int, name: str) -> None:
        request = asked(number, name)
        key = self.cache.key(request)
        assert key is not None
        found = self.cache.find(key, request)
        known = self.known.get(number)
        if known is not None and known[0] <= self.clock.now:
            del self.known[number]
            known = None
        if known is None:
            assert found is None
            return
        self.known.move_to_end(number)
        assert found is not None
        answer = found.wait()
        assert answer.id == name
        [tensor] = answer.outputs
        assert np.array_equal(np.asarray(tensor.data), np.full((1, known[1]), known[2], np.float32))
        assert answer.parameters == {}
        answer.parameters["changed"] = True

    @rule(seconds=st.sampled_from([0.5, 1.0, 2.0, 5.0, TTL_S]))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule(ends=SELDOM.map(lambda seldom: not seldom))
    def change(self, ends: bool) -> None:
        """The model is loaded anew, or loading it has begun."""
        self.cache.suspend()
        self.suspended = True
        self.known.clear()
        if ends:
            self.resume()

    @precondition(lambda self: self.suspended)
    @rule()
    def resume(self) -> None:
        self.cache.resume()
        self.suspended = False
        self.generation += 1

    @property
    def nbytes(self) -> int:
        return sum(4 * size for _, size, _ in self.known.values())

    @invariant()
    def agrees(self) -> None:
        assert len(self.cache) == len(self.known)
        assert self.cache.nbytes == self.nbytes <= BYTES
        assert self.cache.generation == self.generation


TestCache = CacheMachine.TestCase
TestCache.settings = examples(300, stateful_step_count=30)
