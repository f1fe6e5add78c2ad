"""The statistics that workers share, tested without worker processes."""

import math
import os

import msgspec
import pytest

from ksrv.observe.handler_metrics import HandlerMetrics, add_families, exposition
from ksrv.observe.process import ProcessValues
from ksrv.observe.worker_statistics import WorkerStatistics
from ksrv.server.shared import statistics as shared_statistics
from ksrv.server.shared.statistics import ServerStatistics, StatisticsFile
from ksrv.server.shared.worker_table import State, shared_table
from tests.support.engine.engine_models import engine, source


class Record:
    """A value that a handler reports."""

    def __init__(self, name, kind, value, unit="", labels=()):
        self.name, self.kind, self.value = name, kind, value
        self.unit, self.labels = unit, labels


@pytest.fixture
def file():
    return StatisticsFile(3)


class Worker:
    """An engine, and the statistics that its worker shares."""

    def __init__(self, file, slot, living=()):
        self.engine = engine(source(batch=4))
        table = shared_table()
        for other in living:
            table.workers[other].state = State.READY
        self.server = ServerStatistics(self.engine, file, table, slot)


def test_what_a_worker_holds_ends_with_it_and_what_it_counted_does_not(file):
    file.write(
        2,
        WorkerStatistics(
            process=ProcessValues(*[1 << 60] * len(msgspec.structs.fields(ProcessValues)))
        ),
    )
    for living in ({2}, ()):
        one = Worker(file, 0, living)
        values = one.server.total().process
        counted = {"copied", "cpu_ns"}
        for field in msgspec.structs.fields(ProcessValues):
            held = getattr(values, field.name) >= 1 << 60
            assert held == (field.name in counted or bool(living)), field.name
        one.engine.close()


def test_a_worker_killed_while_it_writes_leaves_its_last_counts(file, monkeypatch):
    written = os.pwrite
    for unknown in (1, 2, 3):
        file.write(0, WorkerStatistics(unknown=unknown))
        assert file.read(0).unknown == unknown
        for cut in (1, 8, 20, 30):
            monkeypatch.setattr(os, "pwrite", lambda fd, text, at, n=cut: written(fd, text[:n], at))
            file.write(0, WorkerStatistics(unknown=1 << 40))
            monkeypatch.undo()
            assert file.read(0).unknown == unknown


def test_what_is_half_written_is_not_read(file, monkeypatch):
    file.write(0, WorkerStatistics(unknown=3))
    monkeypatch.setattr(shared_statistics.zlib, "crc32", lambda text, start: -1)
    assert file.read(0) is None


def test_oversized_statistics_are_logged_and_omitted(file, monkeypatch, caplog):
    file.write(0, WorkerStatistics(unknown=3))
    monkeypatch.setattr(shared_statistics, "COPY_BYTES", 40)
    file.write(0, WorkerStatistics(unknown=4))
    assert "are not shared" in caplog.text
    monkeypatch.undo()
    assert file.read(0).unknown == 3
    assert file.read(1) is None


def lines(first, *others):
    families = first.families()
    for other in others:
        add_families(families, other.families())
    return exposition(families).decode().splitlines()


def test_newer_gauge_value_wins_and_other_kinds_are_dropped():
    mine, other = HandlerMetrics(), HandlerMetrics()
    mine.record(Record("level", "gauge", 1.0))
    mine.record(Record("mixed", "gauge", 1.0))
    other.record(Record("level", "gauge", 2.0))
    other.record(Record("mixed", "counter", 5.0))
    other.record(Record("sizes", "histogram", 0.3))
    both = lines(mine, other, other)
    assert "level 2.0" in both and "mixed 1.0" in both
    assert 'sizes_bucket{le="0.5"} 2' in both and "sizes_sum 0.6" in both
    mine.record(Record("level", "gauge", 3.0))
    assert "level 3.0" in lines(mine, other)
    assert "level 2.0" in lines(other)  # nothing came back


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_gauge_of_any_number_is_shared(file, value):
    mine = HandlerMetrics()
    mine.record(Record("level", "gauge", value))
    file.write(0, WorkerStatistics(handlers=mine.families()))
    assert f"level {value!r}\n" in exposition(file.read(0).handlers).decode()
