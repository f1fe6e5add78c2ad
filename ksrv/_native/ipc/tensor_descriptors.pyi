from collections.abc import Iterable
from typing import Any

from typing_extensions import Buffer

from ksrv._native.ipc.shared_blocks import ExportedBlocks, ImportedBlocks
from ksrv._native.memory.buffer_pool import Block

ELEMENT_VIEW_BYTES: int

def write(tensors: Iterable[Any], exported: ExportedBlocks) -> tuple[bytes, list[Block]]: ...
def read(
    payload: Buffer, start: int, length: int, count: int, imported: ImportedBlocks
) -> list[tuple[str, tuple[int, ...], Any]]: ...
