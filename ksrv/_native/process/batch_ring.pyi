from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

FIRST_BATCH_NUMBER: Final[int]

class WorkerRing:
    collect: Callable[[Any, Any], Any]
    batches: Any
    def __init__(self, channel: int) -> None: ...
    def fileno(self) -> int: ...
    def seal(self) -> bool: ...
    def close_fd(self) -> None: ...
    @property
    def used(self) -> bool: ...

class LargePlace:
    def pin(self) -> bool: ...

class ProcessRing:
    def __init__(
        self,
        descriptor: int,
        channel: int,
        inputs: Iterable[tuple[str, str, Sequence[int]]],
        make_requests: Callable[[list[tuple[int, str, bytes]]], Any],
    ) -> None: ...
    def begin_call(self, batch: Any, after_calls: Callable[[], None]) -> int | None: ...
    def serve(
        self,
        run: Callable[[Any], Any],
        answer: Callable[[int, Any], None],
        fail: Callable[[int, BaseException], None],
    ) -> None: ...
