# Safe without the GIL: each call has a separate job, and the row memory is thread-local.
# cython: freethreading_compatible = True
"""Resizes pictures in memory. `row_plan` resizes JPEGs while they are decoded.

The functions release the GIL while they work, and write into memory of the caller.
"""

cimport cython
from libc.stdint cimport uint32_t, uint8_t
from libcpp.memory cimport unique_ptr

from native.images.convert_pixels cimport PIXEL_U16, PIXEL_U8, PixelTarget
from native.images.resize.row_resize cimport (
    ResizeKind, RowResize, make_row_resize, resizes_by_rows as c_resizes_by_rows,
)

from ksrv._native.images.convert_pixels cimport Conversion

if not cython.compiled:
    from collections.abc import Sequence

    from ksrv.request import Array


KINDS: dict[str, int] = {
    "linear floats": <int>ResizeKind.linear_floats,
    "linear bytes": <int>ResizeKind.linear_bytes,
    "area": <int>ResizeKind.area,
    "pillow": <int>ResizeKind.pillow,
}


cdef int fill_window(
    ResizeWindow *job, size, Py_ssize_t channels, full, offset, Plane slot
) except -1:
    height, width = size
    full_height, full_width = full
    top, left = offset
    if not (0 <= top <= full_height - slot.height and 0 <= left <= full_width - slot.width):
        raise ValueError(
            f"a window of {slot.width}x{slot.height} at {left},{top} lies outside of"
            f" {full_width}x{full_height}"
        )
    if 0 in (height, width, slot.height, slot.width):
        raise ValueError("a picture without pixels cannot be resized")
    job.height, job.width, job.channels = height, width, <size_t>channels
    job.full_height, job.full_width = full_height, full_width
    job.top, job.left = top, left
    job.out_height, job.out_width = <size_t>slot.height, <size_t>slot.width
    return 0


def resizes_by_rows(str kind, size: Sequence[int], full: Sequence[int]) -> bool:
    """Return whether a picture can be resized while it is decoded.

    Args:
        kind: One of `KINDS`.
        full: Height and width of the whole resized picture.
    """
    cdef ResizeWindow job
    job.height, job.width = size
    job.full_height, job.full_width = full
    return c_resizes_by_rows(<ResizeKind><int>KINDS[kind], job)


def resize_rows(
    source: Array,
    target: Array,
    Conversion conversion not None,
    full: Sequence[int],
    offset: Sequence[int] = (0, 0),
    *,
    str kind,
    bint bfloat16=False,
) -> None:
    """Resize a picture row by row and convert it.

    Args:
        source: uint8 [height, width] or [height, width, channels]; uint16 as well for "linear
            floats". For "pillow", the last of four channels is opacity.
        target: A window of the resized picture.
        conversion: From the resized values to the numbers of `target`.
        full: Height and width of the whole resized picture.
        offset: Top and left of the window in it.
        kind: One of `KINDS` that `resizes_by_rows`.
        bfloat16: Whether a uint16 `target` holds the bit patterns of BF16.

    Raises:
        ValueError: Sizes, channels or types that do not fit.
        MemoryError: Not enough memory for the rows.
        BufferError: `target` is read-only.
    """
    cdef Plane picture = Plane(source, "source")
    cdef Plane slot = Plane(target, "target", True)
    cdef PixelTarget to
    cdef ResizeWindow window
    cdef ResizeKind by = <ResizeKind><int>KINDS[kind]
    cdef unique_ptr[RowResize] receiver
    cdef Py_ssize_t row
    cdef int sample = PIXEL_U8 if picture.format == "B" else PIXEL_U16
    cdef bint prepared
    if picture.format != "B" and not (picture.format == "H" and by == ResizeKind.linear_floats):
        raise ValueError(f"pixels of format {picture.format!r} are not resized like this")
    conversion.aim(slot, picture.channels, bfloat16, &to)
    fill_window(
        &window, (picture.height, picture.width), picture.channels, full, offset, slot
    )
    if not c_resizes_by_rows(by, window):
        raise ValueError(f"the resize {kind!r} to {full} needs the whole picture")
    with nogil:
        receiver = make_row_resize(by, window, sample, to, conversion.coefficients)
        prepared = receiver.get() != NULL and receiver.get().prepare()
        if prepared:
            for row in range(picture.height):
                receiver.get().take(
                    <uint32_t>row, <const uint8_t *>picture.view.buf + row * picture.row_bytes
                )
    if not prepared:
        raise MemoryError("not enough memory to resize the picture")
