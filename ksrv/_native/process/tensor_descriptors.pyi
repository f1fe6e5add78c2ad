from collections.abc import Iterable
from typing import Any

from ksrv._native.process.shared_blocks import ExportedBlocks, ImportedBlocks

ELEMENT_VIEW_BYTES: int

def write(tensors: Iterable[Any], exported: ExportedBlocks) -> tuple[bytes, list[Any]]: ...
def read(
    payload: bytes, imported: ImportedBlocks
) -> tuple[list[tuple[str, tuple[int, ...], Any]], int]: ...
