from collections.abc import Callable
from typing import NamedTuple, final

from typing_extensions import Buffer

FORMATS: tuple[str, ...]

class ImageError(ValueError): ...

class Header(NamedTuple):
    format: str
    width: int
    height: int
    channels: int
    bit_depth: int
    orientation: int
    components: int
    scans: int
    pixel_bytes: int

def probe(data: Buffer) -> Header: ...

@final
class DecodePool:
    def __init__(self, threads: int) -> None: ...
    @property
    def threads(self) -> int: ...
    def run(self, work: Callable[[int, int], object], count: int, chunks: int) -> None: ...
