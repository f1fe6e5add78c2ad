"""The changes of a worker's models, which threads make: one for each model that has some to make."""

import threading
from typing import Any

import pytest

from ksrv.engine.changes import RepositoryChange
from ksrv.server.shared.worker_table import State, WorkerTable
from ksrv.server.workers.change_log import ChangeLog
from ksrv.server.workers.repository_changes import ChangeReplicator


class Followed:
    """An engine that notes what it is told to do."""

    def __init__(self) -> None:
        self.made: list[tuple[str, str]] = []

    def follow(self, change: RepositoryChange, order: int) -> None:
        self.made.append((change.kind, change.name))


@pytest.fixture
def replicator() -> ChangeReplicator:
    table = WorkerTable()
    slot = table.allocate()
    made = ChangeReplicator(ChangeLog(table.read_by_all), table, slot)
    table.set_state(slot, State.READY)
    return made


def test_a_change_for_which_the_system_has_no_thread_is_made_once_it_has(replicator, monkeypatch):
    start, refused = threading.Thread.start, []

    def scarce(self: threading.Thread) -> None:
        if self.name == "ksrv-change" and len(refused) < 2:
            refused.append(self)
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", scarce)
    engine: Any = Followed()
    threading.Thread(target=replicator.run, args=(engine,), daemon=True).start()
    changes = [RepositoryChange(kind="unload", name=name) for name in ("m", "m", "other")]

    def ask() -> None:
        for change in changes:
            replicator.carry_out(lambda change=change: [change])

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(60)
    assert not asking.is_alive()
    assert len(refused) == 2
    assert engine.made == [(one.kind, one.name) for one in changes]
