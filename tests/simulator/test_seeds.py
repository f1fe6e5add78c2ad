"""The run of many seeds: which seeds are simulated, and the report on seeds that find a fault."""

import sys

import pytest

from tests.simulator import seeds

PROGRAM = """
import sys
first, count, seconds = map(int, sys.argv[1:])
print(first, count, file=open({log!r}, "a"))
for seed in range(first, first + count):
    if seed in (3, 4, 120):
        print("a report\\nseed", seed, "has found a fault", file=sys.stderr)
        sys.exit(1)
print("5 simulations; the next seed is", first + count)
"""


def test_run_prints_seed_with_fault_and_continues(tmp_path, capsys):
    log, program = tmp_path / "log", tmp_path / "program.py"
    program.write_text(PROGRAM.format(log=str(log)))
    status = seeds.main(["1", "130", "--jobs", "2", sys.executable, str(program)])
    told = capsys.readouterr().out
    assert status == 1
    assert "=== seed 120 ===\na report" in told
    assert told.startswith("\n=== seed") and "130 seeds in" in told
    assert told.endswith("Seeds that found a fault: 3 4 120\n")
    runs = sorted(tuple(map(int, line.split())) for line in log.read_text().splitlines())
    assert runs == [(1, 50), (4, 47), (5, 46), (51, 50), (101, 30), (121, 10)]


def test_program_without_output_ends_the_run(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("raise SystemExit(2)")
    with pytest.raises(RuntimeError, match="ended with 2"):
        seeds.main(["1", "10", sys.executable, str(program)])
