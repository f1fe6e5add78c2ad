"""The search for settings on models that are formulas, and the copy of the model with the settings found."""

import pytest

from ksrv.bench.batching import (
    Candidate,
    Trial,
    copied_model,
    search,
    settings_of,
)
from ksrv.cli.main import main


def accelerator(candidate):
    """One device: a batch costs 10 ms plus 1 ms per row, and more instances gain nothing."""
    size = candidate.max_batch_size
    seconds = 0.010 + 0.001 * size
    filled = min(1, 0.5 + 0.1 * candidate.max_delay_ms)
    throughput = size * filled / (seconds + candidate.max_delay_ms / 1e3)
    latency = 2e3 * seconds + candidate.max_delay_ms
    return Trial(candidate, throughput if latency <= 60 else 0.0, latency, 2 * size)


def processors(candidate):
    """Four cores: single-threaded instances are fastest, and batches gain nothing."""
    busy = min(4, candidate.instances * (candidate.threads or 1))
    return Trial(candidate, 100.0 * busy, 10.0, busy)


def test_batching_is_chosen_if_it_is_faster():
    best, trials = search(accelerator, 4, 60)
    assert best.candidate.max_batch_size == 16  # 32 misses the latency goal
    assert best.candidate.instances == 1
    assert best.throughput == max(one.throughput for one in trials) or best.beats(
        Trial(Candidate(), best.throughput / 1.06)
    )
    assert len({one.candidate for one in trials}) == len(trials) < 30


def test_instances_are_chosen_if_they_are_faster():
    best, _ = search(processors, 4, 60)
    assert (best.candidate.instances, best.candidate.max_batch_size) == (4, 1)
    assert best.candidate.max_delay_ms == 0


def test_a_model_of_single_rows_gets_no_batches():
    _, trials = search(accelerator, 2, 60, batches=False)
    assert {one.candidate.max_batch_size for one in trials} == {1}


def test_unreachable_goal_reports_the_nearest_settings():
    def late(candidate):
        return Trial(candidate, 0.0, 100.0 / candidate.instances, 1)

    best, _ = search(late, 4, 10)
    assert best.throughput == 0 and best.candidate.instances == 4


def test_settings_that_cannot_be_loaded_are_never_the_best():
    def half(candidate):
        if candidate.instances > 1:
            return Trial(candidate, error="no memory")
        return Trial(candidate, 10.0, 1.0, 1)

    best, trials = search(half, 4, 10)
    assert best.candidate.instances == 1 and any(one.error for one in trials)


def test_models_without_settings_get_some(tmp_path):
    (tmp_path / "a.onnx").write_bytes(b"")
    assert settings_of(tmp_path / "a.onnx") == {"model": "a.onnx"}
    assert settings_of(tmp_path) == {"model": "a.onnx"}
    with copied_model(tmp_path / "a.onnx") as (copy, _):
        assert copy.name == "a" and (copy / "a.onnx").exists()
    (tmp_path / "handler.py").write_text("")
    assert settings_of(tmp_path) == {"handler": "handler.py"}


@pytest.mark.parametrize("name", ["nothing", "empty", "a.mar", "list"])
def test_path_without_a_model_is_refused(tmp_path, name):
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.mar").write_text("")
    (tmp_path / "list").mkdir()
    (tmp_path / "list" / "model.yaml").write_text("[1]")
    with pytest.raises(ValueError, match=name):
        settings_of(tmp_path / name)


def test_a_goal_is_needed():
    from click.testing import CliRunner

    done = CliRunner().invoke(main, ["bench", "x", "--find-batching"])
    assert done.exit_code == 2 and "--goal" in done.output
