from collections.abc import Callable, Sequence
from typing import final

from ksrv._native.images.convert_pixels import Conversion
from ksrv._native.images.decode_pool import DecodePool
from ksrv._native.images.image_header import Header
from ksrv._native.queue.request_handle import NativeHandle
from ksrv.request import Array, Element

WHOLE: int
ELSEWHERE: int
ENDED: int

@final
class RowPlan:
    def __init__(
        self,
        *,
        size: Sequence[int],
        slot: Array,
        part: Sequence[int],
        conversion: Conversion,
        full: Sequence[int],
        offset: Sequence[int],
        kind: str,
        order: str,
        reduction: int,
        bfloat16: bool,
        border: bytes = b"",
    ) -> None: ...

@final
class PlanTable:
    def __init__(self, make: Callable[[int, int, int], RowPlan | None], most: int) -> None: ...
    def find(self, height: int, width: int, channels: int) -> RowPlan | None: ...

def decode_rows(
    pool: DecodePool,
    plans: list[RowPlan],
    files: list[Element],
    headers: list[Header],
    rows: list[int],
    out: Array,
    requests: list[NativeHandle | None] | None,
    *,
    upright: bool,
) -> list[int]: ...
