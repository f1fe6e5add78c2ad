# Safe without the GIL: a mutex guards the plans, and nothing else changes.
# cython: freethreading_compatible = True
"""Rules and resize plans for the images of one input, for batches that are built without Python.

The C++ side (`RowPlans` in native/images/resize/jpeg_batch.hpp) decodes an image with the plan of
its size. For a size that occurs for the first time, Python makes the plan (`FastImages.plan`).
"""

cimport cython
from libc.stdint cimport uint32_t, uint64_t

from native.images.resize.jpeg_batch cimport JpegRow

from ksrv._native.images.row_plan cimport RowPlan

if not cython.compiled:
    from collections.abc import Callable


cdef class FastImages:
    """The images of one input of fast-path requests.

    Args:
        make: Returns the `RowPlan` for the height, width and channels (1 or 3) of an image, or None
            if it cannot be decoded row by row. It must keep the plans' conversions alive, because
            the copies of the plans in C++ refer to them.
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
        make not None: Callable[[int, int, int], RowPlan | None],
        DecodePool pool not None,
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
        self.make = make
        self.pool = pool
        self.rules.accepted = True
        self.rules.strict = strict
        self.rules.upright = upright
        self.rules.resized = resized
        self.rules.height, self.rules.width, self.rules.channels = shape
        self.rules.image_pixels = image_pixels
        self.rules.request_pixels = request_pixels
        self.rules.scans = scans
        self.rules.scans_per_component = scans_per_component
        self.rules.plans = &self.plans
        self.rules.pool = pool.pool

    cdef int plan(self, uint32_t height, uint32_t width, uint32_t channels) except -1:
        """Make the plan for an image size. Python decodes images of a size that has no plan."""
        cdef JpegRow no_plan
        made = self.make(height, width, channels)
        self.plans.keep(height, width, channels, no_plan if made is None else (<RowPlan?>made).job)
        return 0
