from collections.abc import Iterable
from typing import Any

from typing_extensions import Buffer

from ksrv._native.ipc.shared_blocks import OwnBlocks, PeerBlocks
from ksrv._native.memory.buffer_pool import Block

ELEMENT_VIEW_BYTES: int

def write(tensors: Iterable[Any], own: OwnBlocks) -> tuple[bytes, list[Block]]: ...
def read(
    payload: Buffer, start: int, length: int, count: int, peer: PeerBlocks
) -> list[tuple[str, tuple[int, ...], Any]]: ...
