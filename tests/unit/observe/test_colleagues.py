"""What workers tell each other of their counts, without workers."""

import os

import pytest

from ksrv.observe import colleagues
from ksrv.observe.colleagues import Colleagues, Counts, CountsFile
from ksrv.observe.handler_metrics import HandlerMetrics
from ksrv.observe.process import ProcessValues
from ksrv.statistics import add_counts
from tests.unit.engine.engine_models import engine, request, source


class Record:
    """A value as a handler reports it."""

    def __init__(self, name, kind, value, unit="", labels=()):
        self.name, self.kind, self.value = name, kind, value
        self.unit, self.labels = unit, labels


@pytest.fixture
def file():
    return CountsFile(3)


def worker(file, place, living=()):
    made = engine(source(batch=4))
    made.colleagues = Colleagues(file, place, lambda other: other in living)
    return made


def test_every_worker_answers_for_all(file):
    first, second = worker(file, 0, {0, 1}), worker(file, 1, {0, 1})
    for rows in (1, 2):
        first.infer(request(rows))
    second.infer(request(2))
    for one in (first, second):
        one.colleagues.publish(one)
    expected = {1: 1, 2: 2}
    for one in (first, second):
        (found,) = one.statistics("m")
        assert (found.success.count, found.inference_count, found.execution_count) == (3, 5, 3)
        assert {size.batch_size: size.compute_infer.count for size in found.batches} == expected
        assert found.stages["request"].count == sum(found.stages["request"].buckets) == 3
        assert one.own_statistics("m")[0].success.count < 3
        one.close()


def test_a_successor_goes_on_from_what_it_finds(file):
    for turn in range(1, 4):
        one = worker(file, 1)
        one.infer(request())
        one.handler_metrics.record(Record("seen", "counter", 1.0))
        one.unknown += 1
        one.colleagues.publish(one)
        one.colleagues.publish(one)  # nothing is counted twice
        assert one.statistics()[0].success.count == turn
        assert one.unknown_requests() == turn
        assert f"seen {float(turn)!r}" in one.handler_page().decode()
        one.close()


def test_what_a_worker_holds_ends_with_it_and_what_it_counted_does_not(file):
    file.write(2, Counts(process=ProcessValues(1 << 60, 1 << 60, 1 << 60, 1 << 60, 1 << 60)))
    for living in ({2}, ()):
        one = worker(file, 0, living)
        values = one.process_values()
        assert values.copied >= 1 << 60
        assert (values.in_flight >= 1 << 60) == (values.resident >= 1 << 60) == bool(living)
        one.close()


def test_a_worker_killed_while_it_writes_leaves_its_last_counts(file, monkeypatch):
    written = os.pwrite
    for unknown in (1, 2, 3):
        file.write(0, Counts(unknown=unknown))
        assert file.read(0).unknown == unknown
        for cut in (1, 8, 20, 30):
            monkeypatch.setattr(os, "pwrite", lambda fd, text, at, n=cut: written(fd, text[:n], at))
            file.write(0, Counts(unknown=1 << 40))
            monkeypatch.undo()
            assert file.read(0).unknown == unknown


def test_what_is_half_written_is_not_read(file, monkeypatch):
    file.write(0, Counts(unknown=3))
    monkeypatch.setattr(colleagues.zlib, "crc32", lambda text, start: -1)
    assert file.read(0) is None


def test_more_than_a_copy_may_take_is_said_and_left_out(file, monkeypatch, caplog):
    file.write(0, Counts(unknown=3))
    monkeypatch.setattr(colleagues, "COPY_BYTES", 40)
    file.write(0, Counts(unknown=4))
    assert "are not shared" in caplog.text
    monkeypatch.undo()
    assert file.read(0).unknown == 3
    assert file.read(1) is None


def test_of_a_gauge_the_newer_value_counts_and_of_another_kind_none():
    mine, other = HandlerMetrics(), HandlerMetrics()
    mine.record(Record("level", "gauge", 1.0))
    mine.record(Record("mixed", "gauge", 1.0))
    other.record(Record("level", "gauge", 2.0))
    other.record(Record("mixed", "counter", 5.0))
    other.record(Record("sizes", "histogram", 0.3))
    both = mine.exposition([other.families(), other.families()]).decode().splitlines()
    assert "level 2.0" in both and "mixed 1.0" in both
    assert 'sizes_bucket{le="0.5"} 2' in both and "sizes_sum 0.6" in both
    mine.record(Record("level", "gauge", 3.0))
    assert "level 3.0" in mine.exposition([other.families()]).decode().splitlines()
    assert "level 2.0" in other.exposition().decode().splitlines()  # nothing came back


def test_stages_that_only_one_worker_knows_are_kept():
    one = engine(source(batch=4))
    one.infer(request())
    (full,) = one.own_statistics()
    (sums,) = one.own_statistics()
    sums.stages.clear()
    sums.batches.clear()
    add_counts(sums, full)
    assert sums.stages == full.stages and sums.batches == full.batches
    assert sums.success.count == 2
    assert sums.success.ns == 2 * full.success.ns
    one.close()
