"""Runs the simulator's program over many seeds, several processes at a time. It needs Python alone.

    python seeds.py 1 100000 --jobs 16 --minutes 10 -- ./simulate simulator.key simulator.pem

prints each seed that finds a fault with the program's report, continues with the next seed, and prints at the end how
many seeds were simulated.
"""

import argparse
import re
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

BATCH = 50
"""Seeds of one process: its start costs as much as a seed."""
SHOWN_LINES = 60


class Seeds:
    """Seeds that threads take in batches until none, or no time, is left.

    Attributes:
        faults: The seeds that have found one.
        simulated: How many seeds were looked at.
    """

    def __init__(self, program: Sequence[str], first: int, last: int, seconds: float) -> None:
        self.faults: list[int] = []
        self.simulated = 0
        self._program, self._next, self._last = program, first, last
        self._end = time.monotonic() + seconds
        self._lock = threading.Lock()

    def run(self, jobs: int) -> None:
        """Simulate all of them.

        Raises:
            RuntimeError: The program ends in a way that names no seed.
        """
        with ThreadPoolExecutor(jobs) as pool:
            for job in [pool.submit(self._work) for _ in range(jobs)]:
                job.result()

    def _work(self) -> None:
        first = behind = 0
        while (left := int(self._end - time.monotonic())) > 0:
            if first == behind:
                with self._lock:
                    first = self._next
                    behind = self._next = min(first + BATCH, self._last + 1)
            if first == behind:
                return
            first = self._simulate(first, behind, left)

    def _simulate(self, first: int, behind: int, seconds: int) -> int:
        """Simulate seeds until one finds a fault or the time is over, and return the seed to go on with."""
        command = [*self._program, str(first), str(behind - first), str(seconds)]
        ran = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        fault = re.search(r"^seed (\d+) has found a fault$", ran.stderr, re.MULTILINE)
        over = fault or re.search(r"the next seed is (\d+)", ran.stdout)
        if over is None:
            raise RuntimeError(f"{command} ended with {ran.returncode}: {ran.stdout}{ran.stderr}")
        following = int(over[1])
        with self._lock:
            if fault:
                following += 1
                self.faults.append(int(fault[1]))
                lines = ran.stderr.splitlines()
                print(f"\n=== seed {fault[1]} ===", *lines[:SHOWN_LINES], sep="\n", flush=True)
            self.simulated += following - first
        return following


def main(arguments: Sequence[str] | None = None) -> int:
    """Simulate as the command line says, and return 1 if a seed found a fault."""
    parser = argparse.ArgumentParser(description="Simulate many seeds.")
    parser.add_argument("first", type=int, help="the first seed")
    parser.add_argument("last", type=int, help="the last seed")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--minutes", type=float, default=60, help="stop after this time")
    parser.add_argument("program", nargs="+", help="the program, its key and its certificate")
    given = parser.parse_args(arguments)
    seeds = Seeds(given.program, given.first, given.last, given.minutes * 60)
    began = time.monotonic()
    seeds.run(given.jobs)
    took = time.monotonic() - began
    rate = seeds.simulated / took * 3600
    print(f"{seeds.simulated} seeds in {took:.0f} s with {given.jobs} jobs: {rate:.0f} an hour")
    print("Seeds that found a fault:", *(sorted(seeds.faults) or ["none"]))
    return 1 if seeds.faults else 0


if __name__ == "__main__":
    sys.exit(main())
