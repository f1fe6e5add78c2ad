"""The processes that a process has started."""

from collections.abc import Collection
from pathlib import Path

from tests.support.wait_until import wait_until


def children(pid: int) -> list[int]:
    """Return the children of a process that its main thread has started.

    Args:
        pid: The process.
    """
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def another_child(pid: int, known: Collection[int]) -> int:
    """Wait for another child of a process, and return it.

    Args:
        pid: The process.
        known: The children that it had before.
    """
    wait_until(lambda: set(children(pid)) - set(known))
    return (set(children(pid)) - set(known)).pop()
