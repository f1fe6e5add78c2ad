from collections.abc import Iterable
from typing import Final

FAULTS: Final[tuple[str, ...]]

def read_chunks(
    data: bytes,
    pieces: Iterable[int] = (),
    *,
    most_chunks: int = 65536,
    most_bytes: int = 1048576,
) -> tuple[str, int, bytes]: ...
