"""The event loop and handlers in processes in the simulator: some seeds, and each call of a request that can fail, failed once."""

import re

import pytest

from tests.simulator.run import write_certificate
from tests.support.native.programs import run_program

pytestmark = pytest.mark.long

SIMULATE = "../simulator/simulate.cpp"
KINDS = {"HTTP/1.1": 0, "HTTP/1.1 over TLS": 1, "gRPC": 2}
FOUND = {
    "a bell to a handler process that the kernel has no memory for": (745, 789, 873),
    "a batch that is given up because the batch before it was late": (205,),
    "a deadline that a client counts before the server accepts it": (14018,),
    "an answer that ends the connection because the queue is full": (20297,),
}
"""Seeds that have found a fault, as long as their course is the same."""
PROCESSES = range(25, 73, 8)
"""Some of the seeds, one of four, that simulate a model whose handler runs in processes."""
QUICK_STEPS = {
    "HTTP/1.1": {"memory": 3, "calls": 6},
    "HTTP/1.1 over TLS": {"memory": 4, "calls": 9},
    "gRPC": {"memory": 8, "calls": 4},
}
"""Of the allocations, or system calls, of a kind, each one of so many fails in the quick tests."""
SLOW_PARTS = 16
"""The slow tests fail every call, in so many runs of the program, because a run has a time limit."""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_certificate(tmp_path_factory.mktemp("certificate"))


def simulated(files, *arguments):
    printed = run_program("sanitize", SIMULATE, *files, *map(str, arguments))
    if "libnghttp2 is missing" in printed:
        pytest.skip(printed)
    return printed


@pytest.mark.timeout(600)
def test_seeds_answer_each_request_and_free_everything(files):
    printed = simulated(files, 1, 12)
    answers = re.search(r"12 simulations of .* (\d+) answers", printed)
    assert int(answers.group(1)) > 150


@pytest.mark.timeout(600)
def test_seeds_with_handler_processes_answer_each_request(files):
    answers = 0
    for seed in PROCESSES:
        found = re.search(r"\b1 simulations of .* (\d+) answers", simulated(files, seed, 1))
        answers += int(found.group(1))
    assert answers > 250


@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", FOUND)
def test_seeds_of_mended_faults_pass(files, fault):
    for seed in FOUND[fault]:
        assert "1 simulations" in simulated(files, seed, 1)


@pytest.mark.timeout(600)
def test_seeds_of_full_server_end_every_connection_in_time(files):
    # Seeds 5, 9 and 13 have a full queue, the others a server that takes one connection.
    printed = simulated(files, "full", 2, 12)
    assert int(re.search(r"12 simulations of .* (\d+) refusals", printed).group(1)) > 10


@pytest.mark.timeout(600)
def test_seed_repeats_its_simulation(files, tmp_path):
    again = write_certificate(tmp_path)
    for seed in (7, 551):  # the second has TLS
        first = simulated(files, seed, 1)
        assert "trace" in first and simulated(again, seed, 1) == first
    assert simulated(files, 7, 1) != simulated(files, 8, 1)


def failed_in_turn(files, kind, what, first, step):
    """Fail each `step`-th call from `first` on, and return the number of calls."""
    printed = simulated(files, "nth", KINDS[kind], what, first, step)
    assert "0 faults" in printed
    return int(printed.split()[0])


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", ["memory", "calls"])
def test_failed_system_call_ends_at_most_one_connection(files, kind, what):
    assert failed_in_turn(files, kind, what, 1, QUICK_STEPS[kind][what]) > 10


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", ["memory", "calls"])
def test_each_failed_system_call_ends_at_most_one_connection(files, kind, what):
    for first in range(1, SLOW_PARTS + 1):
        assert failed_in_turn(files, kind, what, first, SLOW_PARTS) > 10
