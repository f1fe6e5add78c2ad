from collections.abc import Callable, Sequence
from typing import Any, final

from ksrv._native.images.decode_pool import DecodePool
from ksrv._native.images.jpeg_batch import PlanTable
from ksrv._native.queue.request_handle import NativeHandle

@final
class FastImages:
    def __init__(
        self,
        plans: PlanTable,
        pool: DecodePool,
        prepare_left: Callable[
            [
                Sequence[memoryview],
                Any,
                Sequence[int],
                Sequence[int],
                Sequence[NativeHandle],
            ],
            list[Any],
        ],
        *,
        shape: tuple[int, int, int],
        strict: bool,
        upright: bool,
        resized: bool,
        image_pixels: int,
        request_pixels: int,
        scans: int,
        scans_per_component: int,
    ) -> None: ...
