"""The server's counters equal what its clients did, while its processes are killed."""

import http.client
import os
import random
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import requests

from ksrv.testing import Server
from tests.support.faults.callers import addresses
from tests.support.faults.health import descendants, ended, page, rows_run
from tests.support.faults.patterns import MODELS, executed, write_patterns
from tests.support.faults.storms import Load, judge_answers
from tests.support.processes import children
from tests.support.wait_until import wait_until

WORKERS = 2


def totals(values: dict[str, float]) -> dict[str, float]:
    """Return the samples of counters and histograms."""
    kinds = ("_total", "_bucket", "_count", "_sum")
    names = {name: name.partition("{")[0] for name in values}
    return {name: value for name, value in values.items() if names[name].endswith(kinds)}


class Watcher:
    """Reads the page again and again, from whichever worker answers, and notes what went down."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._highest: dict[str, float] = {}
        self.drops: list[str] = []
        self.pages = 0

    def look(self) -> None:
        try:
            shown = totals(page(self._server))
        except (OSError, http.client.HTTPException):
            return  # the worker that was asked has been killed
        for name, value in shown.items():
            before = self._highest.get(name, 0.0)
            if value < before:
                self.drops.append(f"{name}: {before} and then {value}")
            self._highest[name] = max(before, value)
        missing = [name for name in self._highest.keys() - shown.keys() if self._highest[name]]
        self.drops += [f"{name}: {self._highest[name]} and then nothing" for name in missing]
        self.pages += 1

    @contextmanager
    def looking(self) -> Iterator[None]:
        over = threading.Event()

        def go_on() -> None:
            while not over.wait(0.02):
                self.look()

        thread = threading.Thread(target=go_on)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
        self.look()


def test_counter_totals_never_go_down(tmp_path: Path, seed: str, choose: random.Random) -> None:
    """To Prometheus a total that goes down has begun anew, and all of it is new."""
    with Server(write_patterns(tmp_path), workers=WORKERS) as server:
        wait_until(lambda: server.log.count("ready: True") == WORKERS)
        watcher = Watcher(server)
        with watcher.looking(), Load(addresses(server), seed) as load:
            for _ in range(3):
                load.wait_for(choose.randint(2, 5))
                victim = choose.choice(children(server.pid))
                handlers = [pid for pid in descendants(victim) if pid != victim]
                os.kill(choose.choice(handlers), signal.SIGKILL)
                load.wait_for(2)
                known = server.log.count("ready: True")
                os.kill(victim, signal.SIGKILL)
                wait_until(lambda: server.log.count("ready: True") > known, 60)  # noqa: B023
        judge_answers(load.ledger)
        assert watcher.pages > 10
        assert not watcher.drops, watcher.drops[:10]
        assert_within_what_clients_saw(server, tmp_path, load)


def assert_within_what_clients_saw(server: Server, root: Path, load: Load) -> None:
    """The page counts no request that no client made, and the statistics are the page's."""
    values = page(server)
    stats = requests.get(f"{server.url}/v2/models/stats", timeout=60).json()["model_stats"]
    counted = {one["name"]: int(one["inference_stats"]["success"]["count"]) for one in stats}
    for model in MODELS:
        told, ways = load.ledger.outcomes(model), ended(values, model)
        run = executed(root, model)
        shown = (
            f"{model}: the page says {dict(ways)}, the clients {dict(told)}; {len(run)} were run"
        )
        assert told["answered"] + told["lost"] == sum(told.values()), shown
        assert 0 < ways["success"] <= told["answered"] + told["lost"], shown
        assert ways["success"] <= len(run), shown
        assert rows_run(values, model) <= sum(run.values()), shown
        assert counted[model] == ways["success"], shown
