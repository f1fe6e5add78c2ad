from collections.abc import Iterable
from typing import Any

from typing_extensions import Buffer

from ksrv._native.process.shared_blocks import ExportedBlocks, ImportedBlocks

ELEMENT_VIEW_BYTES: int

def write(tensors: Iterable[Any], exported: ExportedBlocks) -> tuple[bytes, list[Any]]: ...
def read(
    payload: Buffer,
    start: int,
    length: int,
    count: int,
    imported: ImportedBlocks,
) -> list[tuple[str, tuple[int, ...], Any]]: ...
