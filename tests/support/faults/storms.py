"""Clients that call a server through the proxy of faults, and checks of all their outcomes."""

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tests.support.faults.callers import CALLERS, Outcome
from tests.support.faults.patterns import MODELS, Pattern, draw_pattern
from tests.support.faults.proxy import KINDS, Fault, FaultProxy, draw_fault
from tests.support.wait_until import wait_until

PATIENCE = 60.0
"""Seconds that a client waits for bytes: a server that makes it wait longer has lost the call."""
CORRUPTED_PATIENCE = 2.0
"""Seconds where a changed byte may have the two sides wait for each other."""


@dataclass
class Record:
    """One call."""

    pattern: Pattern
    faults: list[Fault]
    outcome: Outcome

    @property
    def harmless(self) -> bool:
        """Whether every byte of it, either way, was passed on."""
        return all(fault.harmless for fault in self.faults)


@dataclass
class Ledger:
    """All calls of a storm."""

    records: list[Record] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def outcomes(self, model: str = "") -> Counter[str]:
        """Return how often each kind of outcome was, of one model or of all."""
        return Counter(one.outcome.kind for one in self.records if model in ("", one.pattern.model))


class Faults:
    def __init__(self, choose: random.Random, kinds: tuple[str, ...]) -> None:
        self._choose, self._kinds = choose, kinds
        self._made: list[Fault] = []

    def __call__(self) -> Fault:
        self._made.append(draw_fault(self._choose, self._kinds))
        return self._made[-1]

    def since(self, mark: int) -> list[Fault]:
        """Return the faults of the connection that was open at a mark, and of later connections."""
        return self._made[max(0, mark - 1) :]

    @property
    def mark(self) -> int:
        return len(self._made)


def storm(
    address: str,
    protocol: str,
    seed: str,
    *,
    trusted: Path | None = None,
    clients: int = 4,
    rounds: int = 20,
    kinds: tuple[str, ...] = KINDS,
    models: tuple[str, ...] = MODELS,
) -> Ledger:
    """Have clients call a server through faults, and return their outcomes."""
    ledger = Ledger()

    def client(number: int, proxy: FaultProxy) -> None:
        choose = random.Random(f"{seed}:{protocol}:{number}")
        faults = Faults(random.Random(f"{seed}:{protocol}:{number}:faults"), kinds)
        patience = CORRUPTED_PATIENCE if kinds == ("corrupt",) else PATIENCE
        caller = CALLERS[protocol](proxy.listen(faults), trusted, patience)
        for _ in range(rounds):
            patterns = [draw_pattern(choose, models) for _ in range(caller.at_once)]
            mark = faults.mark
            outcomes = caller.call(patterns)
            met = faults.since(mark)
            ledger.records += [
                Record(one, met, outcome) for one, outcome in zip(patterns, outcomes, strict=True)
            ]
            if choose.random() < 0.4:
                caller.close()  # the next call meets another fault
        caller.close()

    with FaultProxy(address) as proxy:
        targets = [partial(client, at, proxy) for at in range(clients)]
        together(targets, ledger.failures)
    assert not ledger.failures, ledger.failures
    return ledger


class Load:
    """Clients of every protocol that call a server, without faults between, for as long as the context is open."""

    def __init__(
        self,
        addresses: dict[str, str],
        seed: str,
        *,
        clients: int = 1,
        models: tuple[str, ...] = MODELS,
        trusted: Path | None = None,
        stays: bool = True,
    ) -> None:
        self.ledger = Ledger()
        self._models, self._trusted, self._stays = models, trusted, stays
        self._over = threading.Event()
        self._made: Counter[str] = Counter()
        self._targets = {
            f"{protocol}:{number}": (protocol, address)
            for protocol, address in addresses.items()
            for number in range(clients)
        }
        self._seed = seed

    def _client(self, name: str) -> None:
        protocol, address = self._targets[name]
        choose = random.Random(f"{self._seed}:{name}")
        caller = CALLERS[protocol](address, self._trusted, PATIENCE)
        while not self._over.is_set():
            patterns = [draw_pattern(choose, self._models) for _ in range(caller.at_once)]
            outcomes = caller.call(patterns)
            self.ledger.records += [
                Record(one, [], outcome) for one, outcome in zip(patterns, outcomes, strict=True)
            ]
            self._made[name] += 1
            if not self._stays:
                caller.close()
            if outcomes[0].kind != "answered":
                self._over.wait(0.02)  # a server that is away is not asked without a pause
        caller.close()

    def wait_for(self, more: int) -> None:
        """Wait until every client has made further rounds of calls."""
        wanted = {name: self._made[name] + more for name in self._targets}

        def made() -> bool:
            return bool(self.ledger.failures) or all(
                self._made[name] >= count for name, count in wanted.items()
            )

        wait_until(made, 120)

    def __enter__(self) -> "Load":
        targets = [partial(self._client, name) for name in self._targets]
        self._running = running(targets, self.ledger.failures)
        self._running.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._over.set()
        self._running.__exit__(*error)
        assert not self.ledger.failures, self.ledger.failures


def together(targets: Sequence[Callable[[], Any]], failures: list[str]) -> None:
    with running(targets, failures):
        pass


@contextmanager
def running(targets: Sequence[Callable[[], Any]], failures: list[str]) -> Iterator[None]:
    def guarded(target: Callable[[], Any]) -> None:
        try:
            target()
        except BaseException as error:  # shown by the test, which is on another thread
            failures.append(repr(error))

    threads = [threading.Thread(target=guarded, args=(target,)) for target in targets]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for thread in threads:
            thread.join()


def judge_answers(ledger: Ledger) -> None:
    """Fail if a call got anything of another's data, or no answer at all on an open connection."""
    for record in ledger.records:
        outcome, pattern = record.outcome, record.pattern
        if outcome.answer is not None:
            assert not pattern.strange_elements(outcome.answer), (pattern, outcome)
        assert outcome.kind != "silent", (pattern, outcome)


def all_answered(ledger: Ledger) -> None:
    """Fail if a call was not answered, or got anything of another's data."""
    judge_answers(ledger)
    others = [one for one in ledger.records if one.outcome.kind != "answered"]
    assert not others, others[:5]


def judge(ledger: Ledger, *, trusted: bool) -> None:
    """Fail if a call was lost without a cause, was answered with another's data, or was never answered."""
    for record in ledger.records:
        outcome, pattern = record.outcome, record.pattern
        what = (
            f"{pattern.model} {pattern.id} {pattern.array.shape} through {record.faults}: {outcome}"
        )
        corrupts = any(fault.kind == "corrupt" for fault in record.faults)
        if outcome.kind == "answered":
            assert outcome.answer is not None
            strange = pattern.strange_elements(outcome.answer)
            # One byte was changed: one number may be, which is nobody else's.
            assert strange <= int(corrupts and not trusted), f"{strange} strange elements: {what}"
        if record.harmless:
            assert outcome.kind == "answered", what
        if outcome.kind == "silent":
            assert corrupts, what
        if outcome.kind == "refused" and not corrupts:
            # A request that its connection cut off may get an error while the other direction is open.
            assert outcome.status in (400, 408, 3, 1, 14), what
