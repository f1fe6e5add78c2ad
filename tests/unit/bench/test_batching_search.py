"""The search for settings on models that are formulas, and the copy of the model with the settings found."""

import signal

import pytest
import yaml

from ksrv.bench.batching import (
    Candidate,
    Trial,
    copied_model,
    search,
    settings_of,
    write_best,
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


def test_a_model_of_single_rows_keeps_its_batching():
    best, trials = search(processors, 2, 60, batches=False)
    assert {one.candidate.max_batch_size for one in trials} == {0}
    assert best.candidate.keys({"batching": "off"}) == {"instances": 2, "threads": 0}


def test_a_model_that_calls_others_may_get_more_instances_than_cores():
    def pipeline(candidate):
        return Trial(candidate, 10.0 * candidate.instances, 10.0, candidate.instances)

    best, _ = search(pipeline, 2, 60, batches=False, most_instances=16)
    assert best.candidate.instances == 16


COMMENTED = """\
# the settings of colours
handler: handler.py   # the handler
batching:             # small batches
  max_batch_size: 2

  # and no large batches
  split: true

# of the machine
"instances": 1   # one for now
parameters:
  instances: 5        # of the handler itself
"""


def test_best_settings_are_written_and_other_lines_stay(tmp_path):
    (tmp_path / "model.yaml").write_text(COMMENTED)
    write_best(tmp_path, Candidate(8, 2.5, 4, 1))
    assert (
        (tmp_path / "model.yaml").read_text()
        == """\
# the settings of colours
handler: handler.py   # the handler
batching: {max_batch_size: 8, split: true, max_delay_ms: 2.5}

# of the machine
instances: 4   # one for now
parameters:
  instances: 5        # of the handler itself
threads: 1
"""
    )
    assert [one.name for one in tmp_path.iterdir()] == ["model.yaml"]


def test_model_without_settings_gets_a_file_with_the_best(tmp_path):
    (tmp_path / "a.onnx").write_bytes(b"")
    write_best(tmp_path, Candidate(8, 0, 1, 2))
    written = yaml.safe_load((tmp_path / "model.yaml").read_text())
    best = {"batching": {"max_batch_size": 8, "max_delay_ms": 0}, "instances": 1, "threads": 2}
    assert written == {"model": "a.onnx"} | best


@pytest.mark.parametrize(
    "text",
    [
        "{handler: handler.py}\n",
        "handler: handler.py\nbatching: &b {max_batch_size: 2}\nparameters: {x: *b}\n",
        "handler: handler.py\nparameters:\n  text: |\n    a\n...\n",
    ],
)
def test_file_whose_keys_share_lines_is_left_alone(tmp_path, text):
    (tmp_path / "model.yaml").write_text(text)
    with pytest.raises(ValueError, match="by hand"):
        write_best(tmp_path, Candidate(8, 2.5, 4, 1))
    assert (tmp_path / "model.yaml").read_text() == text
    assert [one.name for one in tmp_path.iterdir()] == ["model.yaml"]


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


@pytest.mark.parametrize("find", [[], ["--find-batching", "--goal", "5"]])
def test_write_needs_the_folder_of_a_model_whose_settings_are_searched(tmp_path, find):
    from click.testing import CliRunner

    file = tmp_path / "a.onnx"
    file.touch()
    done = CliRunner().invoke(main, ["bench", str(file), "--write", *find])
    assert done.exit_code == 2 and "--write needs --find-batching and the folder" in done.output


def test_sigterm_removes_the_copy_of_the_model(tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    (tmp_path / "a.onnx").touch()
    with pytest.raises(KeyboardInterrupt), copied_model(tmp_path / "a.onnx"):
        signal.raise_signal(signal.SIGTERM)
    assert [one.name for one in tmp_path.iterdir()] == ["a.onnx"]
    assert signal.getsignal(signal.SIGTERM) is before
