from typing import Any, TypedDict

STAGE_NAMES: tuple[str, ...]
BOUNDS_NS: tuple[int, ...]
EXPONENTIAL_SCHEMA: int
FIRST_EXPONENTIAL: int

class Snapshot(TypedDict):
    rows: int
    batches: int
    last_ms: int
    stages: dict[str, tuple[list[int], int, int, dict[int, int]]]
    sizes: dict[int, tuple[int, int, int, int]]

class Stats:
    def failed(self, count: int) -> None: ...
    def looked_up(self, hit: bool, nanoseconds: int) -> None: ...
    def batch(
        self,
        handles: list[Any],
        answers: list[Any] | None,
        won: list[bool],
        assemble_ns: int,
        ran_ns: int,
        timings: dict[str, int],
    ) -> None: ...
    def absorb(self, other: Stats) -> None: ...
    def snapshot(self) -> Snapshot: ...
