"""The processes that a process has started, and what each worker of a server answers."""

import os
import signal
from collections.abc import Callable, Collection, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from tests.support.wait_until import wait_until


def children(pid: int) -> list[int]:
    """Return the children of a process that its main thread has started."""
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):  # it may end between open and read
        return False


def another_child(pid: int, known: Collection[int]) -> int:
    """Wait for another child of a process, and return it."""
    wait_until(lambda: set(children(pid)) - set(known))
    return (set(children(pid)) - set(known)).pop()


@contextmanager
def resting(pids: Collection[int]) -> Iterator[None]:
    """Stop processes, and let them go on afterwards."""

    def rests(pid: int) -> bool:
        return all(
            (task / "stat").read_text().rsplit(")", 1)[1].split()[0] == "T"
            for task in Path(f"/proc/{pid}/task").iterdir()
        )

    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(lambda: all(map(rests, pids)))
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def answers_of_each(pid: int, ask: Callable[[], Hashable]) -> list[set[Hashable]]:
    """Return the different answers of each worker of a server, which gets four calls while the other workers are paused."""
    answers = []
    workers = set(children(pid))
    for worker in workers:
        # Several clients, because the connection of one client may wake only a paused worker.
        with resting(workers - {worker}), ThreadPoolExecutor(4) as pool:
            answers.append(set(pool.map(lambda _: ask(), range(4))))
    return answers
