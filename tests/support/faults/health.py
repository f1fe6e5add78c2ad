"""Checks of a server after a test of faults: it gave back its resources, counted what happened, and answers exactly."""

import contextlib
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from ksrv.testing import Server
from tests.support.faults.callers import CALLERS
from tests.support.faults.patterns import MODELS, Pattern, executed
from tests.support.faults.storms import Ledger
from tests.support.wait_until import wait_until

SPARE_DESCRIPTORS = 24
"""Of blocks that may be in a pool afterwards, on either side, and were not before."""
SPARE_THREADS = 20
"""Threads that a worker starts when they are first needed, and keeps."""

OUTCOMES = ("success", "failed", "invalid", "rejected", "expired", "cancelled")


def descendants(pid: int) -> list[int]:
    found = [pid]
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += descendants(int(child))
    return found


def opened(server: Server) -> int:
    return sum(_entries(pid, "fd") for pid in descendants(server.pid))


def threads(server: Server) -> int:
    return sum(_entries(pid, "task") for pid in descendants(server.pid))


def _entries(pid: int, folder: str) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/{folder}"))
    except (FileNotFoundError, ProcessLookupError):
        return 0


def page(server: Server) -> dict[str, float]:
    status, content = server.get("/metrics")
    assert status == 200
    lines = re.findall(r"^([^#\s][^ ]*) (\S+)$", content.decode(), re.M)
    return {name: float(value) for name, value in lines}


def ended(values: dict[str, float], model: str) -> Counter[str]:
    """Return how many requests to a model ended in each way, by the page."""
    labels = 'ksrv_requests_total{{model="{}",outcome="{}",version=""}}'
    found = {outcome: int(values.get(labels.format(model, outcome), 0)) for outcome in OUTCOMES}
    return Counter({outcome: count for outcome, count in found.items() if count})


def wait_successes(server: Server, ledger: Ledger) -> None:
    """Wait until a server's page counts as many successes as its clients had answers, since its start.

    Each worker knows of the others' last second only when that is over.
    """
    answered = ledger.outcomes()["answered"]

    def counted() -> int:
        values = page(server)
        return sum(ended(values, model)["success"] for model in MODELS)

    wait_until(
        lambda: counted() == answered, 30, lambda: f"{counted()} on the page, {answered} answers"
    )


def rows_run(values: dict[str, float], model: str) -> int:
    return int(values.get(f'ksrv_rows_total{{model="{model}",version=""}}', 0))


class Baseline:
    """Resources of a server before a test."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._opened, self._threads = opened(server), threads(server)

    def wait_restored(self) -> None:
        server = self._server

        def restored() -> bool:
            values = page(server)
            return (
                opened(server) <= self._opened + SPARE_DESCRIPTORS
                and threads(server) <= self._threads + SPARE_THREADS
                and _sum(values, "ksrv_pending_requests") == 0
                and values.get("ksrv_bytes_in_flight", 0) == 0
            )

        def tell() -> str:
            values = {name: value for name, value in page(server).items() if value}
            held = f"{opened(server)} descriptors of {self._opened}, {threads(server)} threads of {self._threads}"
            return f"{held}, {values}\n{server.log[-3000:]}"

        wait_until(restored, 60, tell)


def _sum(values: dict[str, float], name: str) -> float:
    return sum(value for key, value in values.items() if key.partition("{")[0] == name)


def assert_answers_exactly(
    addresses: dict[str, str], trusted: Path | None, models: tuple[str, ...] = MODELS
) -> None:
    """Fail unless every protocol answers a good request to every model."""
    for protocol, address in addresses.items():
        caller = CALLERS[protocol](address, trusted, 60)
        for model in models:
            pattern = Pattern(77, model, 2, 9)
            [outcome] = caller.call([pattern])
            assert outcome.answer is not None, outcome
            assert np.array_equal(outcome.answer, pattern.expected)
        caller.close()


def assert_counts_add_up(
    server: Server, root: Path, ledger: Ledger, before: Any, models: tuple[str, ...] = MODELS
) -> None:
    """Fail unless the page, the handlers' journals and the clients' outcomes agree."""
    for model in models:
        now = page(server)
        ways = ended(now, model) - ended(before, model)
        run = executed(root, model)
        records = [one for one in ledger.records if one.pattern.model == model]
        told = ledger.outcomes(model)
        shown = (
            f"{model}: the page says {dict(ways)}, the clients {dict(told)}; {len(run)} were run"
        )
        for record in records:
            times, rows = run[record.pattern.id], record.pattern.rows
            assert times in ((rows,) if record.outcome.kind == "answered" else (0, rows)), record
        assert len(run) <= len(records), f"{shown}: some that nobody sent"
        assert rows_run(now, model) - rows_run(before, model) == sum(run.values()), shown
        # A request that ran without an answer was cancelled, or its connection had ended.
        assert told["answered"] <= ways["success"] <= len(run), shown
        assert len(run) <= ways["success"] + ways["cancelled"], shown
        assert sum(ways.values()) <= len(records), shown
        assert ways.keys() <= {"success", "cancelled", "invalid"}, shown
        assert ways["invalid"] <= told["refused"] + told["lost"], shown
