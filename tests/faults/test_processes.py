"""Processes of a server are killed, crash, pause and continue, or reload again and again, under load."""

import os
import random
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ksrv.testing import Server
from tests.support.faults.callers import CALLERS, addresses
from tests.support.faults.health import assert_answers_exactly, descendants, wait_successes
from tests.support.faults.patterns import write_patterns
from tests.support.faults.storms import Load, all_answered, judge_answers
from tests.support.processes import children, is_alive
from tests.support.wait_until import wait_until

WORKERS = 2
DEADLY = [signal.SIGKILL, signal.SIGSEGV]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(write_patterns(tmp_path), workers=WORKERS) as running:
        wait_until(lambda: loaded(running) == WORKERS)
        yield running


def loaded(server: Server) -> int:
    """How many workers have loaded the models since the start."""
    return server.log.count("ready: True")


def handler_processes(worker: int) -> list[int]:
    """The children of a worker that run a handler, whichever of its threads has started them."""
    return [pid for pid in descendants(worker) if pid != worker]


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"


def end_healthy(server: Server, *, workers: int = WORKERS) -> None:
    wait_until(lambda: len(children(server.pid)) == workers, 60, lambda: server.log[-3000:])
    wait_until(lambda: server.get("/v2/health/ready")[0] == 200)
    assert_answers_exactly(addresses(server), None)


def kill_workers(
    server: Server, seed: str, choose: random.Random, number: signal.Signals, times: int
) -> None:
    """Kill workers one after the other: what a worker held is lost, and nothing else is."""
    with Load(addresses(server), seed, clients=2) as load:
        for _ in range(times):
            load.wait_for(choose.randint(2, 6))
            before, workers = loaded(server), children(server.pid)
            held = {pid: handler_processes(pid) for pid in workers}
            victim = choose.choice(workers)
            os.kill(victim, number)
            wait_until(lambda: loaded(server) > before, 60, lambda: server.log[-3000:])  # noqa: B023
            wait_until(lambda: not any(map(is_alive, held[victim])))  # noqa: B023
            load.wait_for(3)
    judge_answers(load.ledger)
    told = load.ledger.outcomes()
    assert told["refused"] == 0, [
        one for one in load.ledger.records if one.outcome.kind == "refused"
    ][:5]
    # Every client had one connection, with as many calls as its protocol makes at once.
    at_once = sum(2 * caller.at_once for caller in CALLERS.values())
    assert told["lost"] <= times * at_once, told
    assert told["answered"] > told["lost"]
    end_healthy(server)


def kill_handlers(
    server: Server, seed: str, choose: random.Random, number: signal.Signals, times: int
) -> None:
    """Kill handler processes one after the other: their batches are run again, and nothing is lost."""
    with Load(addresses(server), seed, models=("separate",)) as load:
        for _ in range(times):
            load.wait_for(choose.randint(2, 6))
            victim = a_handler(choose)(server)
            os.kill(victim, number)
            wait_until(lambda: not is_alive(victim))  # noqa: B023
            wait_until(lambda: server.get("/v2/health/ready")[0] == 200)
            load.wait_for(3)
    all_answered(load.ledger)
    wait_successes(server, load.ledger)
    end_healthy(server)


def stop_and_go_on(
    server: Server, seed: str, choose: random.Random, pick: Callable[[Server], int], times: int
) -> None:
    """Stop a process for a while: whoever asked it waits, and nothing is lost."""
    with Load(addresses(server), seed, clients=2) as load:
        for _ in range(times):
            load.wait_for(choose.randint(1, 4))
            victim = pick(server)
            os.kill(victim, signal.SIGSTOP)
            try:
                wait_until(lambda: is_stopped(victim))  # noqa: B023
                load_pause(choose)
            finally:
                os.kill(victim, signal.SIGCONT)
            load.wait_for(2)
    all_answered(load.ledger)
    wait_successes(server, load.ledger)
    end_healthy(server)


def load_pause(choose: random.Random) -> None:
    """Let clients run into a stopped process for some hundred milliseconds: how long is no matter of the test."""
    signal.sigtimedwait([], choose.uniform(0.1, 0.5))


def a_worker(choose: random.Random) -> Callable[[Server], int]:
    return lambda server: choose.choice(children(server.pid))


def a_handler(choose: random.Random) -> Callable[[Server], int]:
    def pick(server: Server) -> int:
        worker = choose.choice(children(server.pid))
        wait_until(lambda: handler_processes(worker))  # one that was killed may not be replaced yet
        return choose.choice(handler_processes(worker))

    return pick


def the_master(_: random.Random) -> Callable[[Server], int]:
    return lambda server: server.pid


def hup_storm(server: Server, seed: str, choose: random.Random, times: int) -> None:
    """Reload again and again before the last reload is over: nothing is lost."""
    with Load(addresses(server), seed, stays=False) as load:
        for _ in range(times):
            load.wait_for(1)
            for _ in range(choose.randint(1, 5)):
                os.kill(server.pid, signal.SIGHUP)
                signal.sigtimedwait([], choose.uniform(0, 0.05))
        load.wait_for(5)
    all_answered(load.ledger)
    wait_successes(server, load.ledger)
    end_healthy(server)


@pytest.mark.parametrize(
    ("number", "times"),
    [
        (signal.SIGKILL, 2),
        pytest.param(signal.SIGKILL, 8, marks=pytest.mark.slow),
        pytest.param(signal.SIGSEGV, 8, marks=pytest.mark.slow),
    ],
)
def test_killed_handler_processes_are_replaced(
    server: Server, seed: str, choose: random.Random, number: signal.Signals, times: int
) -> None:
    kill_handlers(server, seed, choose, number, times)


@pytest.mark.slow
@pytest.mark.parametrize("number", DEADLY)
def test_killed_workers_are_replaced(
    server: Server, seed: str, choose: random.Random, number: signal.Signals
) -> None:
    kill_workers(server, seed, choose, number, 4)


@pytest.mark.slow
@pytest.mark.parametrize("pick", [a_worker, a_handler, the_master])
def test_paused_processes_continue(
    server: Server,
    seed: str,
    choose: random.Random,
    pick: Callable[[random.Random], Callable[[Server], int]],
) -> None:
    stop_and_go_on(server, seed, choose, pick(choose), 6)


@pytest.mark.slow
def test_reloads_in_quick_succession_all_end(
    server: Server, seed: str, choose: random.Random
) -> None:
    hup_storm(server, seed, choose, 5)


@pytest.mark.slow
@pytest.mark.parametrize("number", DEADLY)
def test_killed_master_leaves_no_processes(
    tmp_path: Path, seed: str, number: signal.Signals
) -> None:
    server = Server(write_patterns(tmp_path), workers=WORKERS)
    server.start()
    wait_until(lambda: loaded(server) == WORKERS)
    with Load(addresses(server), seed) as load:
        load.wait_for(3)
        all_of_it = descendants(server.pid)
        os.kill(server.pid, number)
        wait_until(lambda: not any(map(is_alive, all_of_it)), 60)
    judge_answers(load.ledger)
    for address in (server.http, server.grpc):
        host, _, port = address.rpartition(":")
        socket.create_server((host, int(port))).close()  # raises where somebody still listens
    assert server.process.wait(10) == -number
    server.kill()
