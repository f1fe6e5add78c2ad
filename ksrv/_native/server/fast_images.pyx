# Needs the GIL, because the table of plans does.
"""The encoded images of one input, for batches that are built without Python."""

from libc.stdint cimport uint32_t, uint64_t


cdef class FastImages:
    """The images of one input of fast-path requests.

    Args:
        plans: How JPEGs become rows, by image size.
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
