# Needs the GIL, because the table of plans does.
"""The encoded images of one input, for batches that are built without Python."""

cimport cython

if not cython.compiled:
    from collections.abc import Callable, Sequence
    from typing import Any, TypeAlias

    from ksrv._native.queue.request_handle import NativeHandle

    PrepareLeft: TypeAlias = Callable[
        [Sequence[memoryview], Any, Sequence[int], Sequence[int], Sequence[NativeHandle]],
        list[Any],
    ]


cdef class FastImages:
    """The images of one input of fast-path requests.

    Args:
        plans: How JPEGs become rows, by image size.
        prepare_left: Decodes images that the native decoder cannot; see
            `ksrv.images.preparer.ImagePreparer.prepare`.
        shape: Height, width and channels of a row.
        strict: Whether an image must have the row's channels.
        upright: Whether images are turned as EXIF says.
        resized: Whether images may have another size than the row.
        image_pixels: The limit on pixels of an image.
        request_pixels: The limit on pixels of the images of a request.
        scans: The limit on scans of a JPEG.
        scans_per_component: Added to the limit for each component of a JPEG.
    """

    def __init__(
        self,
        PlanTable plans not None,
        DecodePool pool not None,
        prepare_left not None: PrepareLeft,
        *,
        shape: tuple[int, int, int],
        bint strict,
        bint upright,
        bint resized,
        uint64_t image_pixels,
        uint64_t request_pixels,
        uint32_t scans,
        uint32_t scans_per_component,
    ):
        self.plans = plans
        self.pool = pool
        self.prepare_left = prepare_left
        self.rules.accepted = True
        self.rules.strict = strict
        self.rules.upright = upright
        self.rules.resized = resized
        self.rules.height, self.rules.width, self.rules.channels = shape
        self.rules.image_pixels = image_pixels
        self.rules.request_pixels = request_pixels
        self.rules.scans = scans
        self.rules.scans_per_component = scans_per_component
        self.rules.plans = &plans.native
        self.rules.pool = pool.pool
