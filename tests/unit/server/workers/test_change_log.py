import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from ksrv.engine.changes import RepositoryChange
from ksrv.errors import NotReady
from ksrv.model.config import FileMark, LoadedFiles, ModelConfig, ModelSource
from ksrv.repository.entry import ModelEntry
from ksrv.server.workers import change_log
from ksrv.server.workers.change_log import Cell, ChangeLog, LogEntry, entries_for_new_worker


def entry(kind, name="m", slot=0, **more):
    change = RepositoryChange(kind=kind, name=name, entry=ModelEntry(name), **more)
    return LogEntry(kind=kind, slot=slot, change=change)


def do(log, *entries, error="", by=0):
    """Append entries, and mark them as applied by the worker of a slot."""
    for one in entries:
        (position,) = log.append([one])
        log.append([LogEntry(kind="done", slot=by, position=position, error=error)])


def left(log):
    return [(one.kind, one.subject[1]) for one in entries_for_new_worker(log.read())]


def test_what_failed_where_it_was_asked_for_is_not_left():
    log = ChangeLog()
    do(log, entry("load"))
    do(log, entry("unload"), error="no such model")
    assert left(log) == [("load", "m")]
    do(log, entry("unload"), error="another worker's", by=1)
    assert left(log) == [("load", "m"), ("unload", "m")]  # slot 0 has not applied it yet


def test_partly_applied_change_keeps_its_applied_part():
    log = ChangeLog()
    asked = entry("load")
    (position,) = log.append([asked])
    made = ModelEntry("m", error="half of it")
    done = LogEntry(kind="done", slot=0, position=position, error="half", models={"m": made})
    log.append([done])
    (one,) = entries_for_new_worker(log.read())
    assert (one.kind, one.slot, one.change.entry) == ("load", -1, made)


def test_change_stays_applied_when_requesting_worker_dies():
    log = ChangeLog()
    (position,) = log.append([entry("load")])
    assert [one.slot for one in entries_for_new_worker(log.read())] == [0]
    log.append([LogEntry(kind="done", slot=1, position=position)])
    assert [one.slot for one in entries_for_new_worker(log.read())] == [-1]
    log.append([LogEntry(kind="done", slot=0, position=position, error="not here")])
    assert entries_for_new_worker(log.read()) == []


def test_an_update_does_not_bring_back_what_was_unloaded():
    log = ChangeLog()
    do(log, entry("unload"), entry("update"))
    assert left(log) == [("unload", "m")]
    do(log, entry("remove"), entry("update"))
    assert left(log) == [("update", "m")]


def test_nothing_is_appended_behind_a_later_change_of_the_same_model():
    log = ChangeLog()
    since = log.end
    do(log, entry("load", "other"))
    assert log.append([entry("load")], since=since)
    assert log.append([entry("load")], since=since) is None


def test_a_log_that_has_grown_is_compacted(monkeypatch):
    monkeypatch.setattr(change_log, "COMPACT_BYTES", 64 * 1024)
    read = 0
    log = ChangeLog(lambda: read)
    for number in range(2000):
        do(log, entry("load" if number % 2 else "unload", config="x" * 100))
        read = log.end
    assert log.end > 500_000
    assert os.fstat(log._file).st_blocks * 512 < 200_000
    assert left(log) == [("load", "m")]
    assert len(log.read()) < 2000
    do(log, entry("unload"))
    assert left(log) == [("unload", "m")]


def test_memory_that_a_worker_has_not_read_is_kept(monkeypatch):
    monkeypatch.setattr(change_log, "COMPACT_BYTES", 64 * 1024)
    log = ChangeLog(lambda: 0)
    for _ in range(1000):
        do(log, entry("load", config="x" * 100))
    followed = [one for _, one in log.read(0) if one.kind == "load"]
    assert len(followed) == 1000


def test_what_was_read_before_the_memory_was_given_back_is_outdated(monkeypatch):
    """A load may take longer than changes of other models need to fill the log."""
    monkeypatch.setattr(change_log, "COMPACT_BYTES", 64 * 1024)
    log = ChangeLog(lambda: log.end)
    since = log.end
    fill(log)
    assert log.append([entry("load")], since=since) is None
    assert log.append([entry("load")], since=log.end) is not None


def test_a_worker_that_starts_reads_to_the_end_beside_a_compaction(monkeypatch):
    monkeypatch.setattr(change_log, "COMPACT_BYTES", 64 * 1024)
    log = ChangeLog(lambda: log.end)
    fill(log)
    pread, once = os.pread, iter([True])

    def compacted_meanwhile(*of):
        if next(once, False):
            begin = log._cells[Cell.KEPT_BEGIN]
            while log._cells[Cell.KEPT_BEGIN] == begin:
                do(log, entry("load", "c"))
        return pread(*of)

    monkeypatch.setattr(change_log.os, "pread", compacted_meanwhile)
    assert ("load", "a") in left(log)


def fill(log):
    """Append until memory was freed."""
    while log._cells[Cell.KEPT_BEGIN] < 128 * 1024:
        do(log, entry("load", "a"), entry("load", "b"))


def test_a_stopped_worker_holds_the_lock_for_a_bounded_time(monkeypatch):
    monkeypatch.setattr(change_log, "LOCK_SECONDS", 0.2)
    log = ChangeLog()
    forked = multiprocessing.get_context("fork")

    def hold():
        with log._locked():
            os.kill(os.getpid(), signal.SIGSTOP)

    process = forked.Process(target=hold)
    process.start()
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    try:
        with pytest.raises(NotReady, match=r"locked for 0\.2 s by a worker that is stopped"):
            log.append([entry("load")])
    finally:
        os.kill(process.pid, signal.SIGKILL)
        os.waitpid(process.pid, 0)
    assert log.append([entry("load")])


def start(generation=0, slot=0, **models):
    return LogEntry(kind="start", slot=slot, generation=generation, pid=1, models=models)


def test_a_start_is_kept_with_its_models(monkeypatch):
    monkeypatch.setattr(change_log, "COMPACT_BYTES", 1000)
    log = ChangeLog()
    source = ModelSource(
        name="m",
        version="1",
        folder=Path("/m/1"),
        root=Path("/m"),
        loaded=LoadedFiles(marks=(FileMark("/m/1/w", 1, 2, "4"),), sources={"/m/h.py": b"\xff"}),
    )
    do(log, start(m=ModelEntry("m", {"1": source})))
    for _ in range(100):
        do(log, entry("load", "other"))
    [kept] = [one for one in entries_for_new_worker(log.read()) if one.kind == "start"]
    assert kept.slot == -1 and kept.models["m"].versions["1"] == source
    assert log.read()[0][1].kind == "kept"


@pytest.mark.parametrize(
    "value",
    [
        2**70,
        -(2**70),
        2**64 - 1,
        "\ud800",
        "é\udcff",
        "é",
        float("nan"),
        b"\xff",
        {1: [True, None]},
    ],
)
def test_values_of_every_kind_stay_what_they_are(value):
    log = ChangeLog()
    source = ModelSource(
        name="m",
        version="",
        loaded=LoadedFiles(sources={"/m/\udcff.py": b"\xff"}),
        folder=Path("/m\udcff"),
        root=Path("/m\udcff"),
        config=ModelConfig(parameters={"value": value}),
    )
    do(log, start(m=ModelEntry("m", {"": source})))
    [kept] = entries_for_new_worker(log.read())
    found = kept.models["m"].versions[""]
    assert found.folder == source.folder and found.loaded == source.loaded
    assert repr(found.config.parameters) == repr({"value": value})


def test_starts_of_replaced_generations_are_removed():
    log = ChangeLog()
    for generation in range(4):
        do(log, start(generation))
    assert left(log) == [("start", "2"), ("start", "3")]


@pytest.mark.parametrize("before", [entry("unload"), start()])
def test_a_start_is_not_appended_behind_what_it_has_not_seen(before):
    log = ChangeLog()
    since = log.end
    do(log, before)
    assert log.append([start(slot=1)], since=since) is None
    assert log.append([start(slot=1)], since=log.end)
