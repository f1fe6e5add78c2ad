"""Resizing of pictures, for the other compiled modules."""

from native.images.resize.window cimport ResizeWindow

from ksrv._native.images.convert_pixels cimport Plane


# Describes a resize in `job`: a picture of `size` becomes one of `full`, and the part of it at
# `offset` (top, left) is written to `slot`. Raises ValueError if the part is not within `full`.
cdef int fill_window(
    ResizeWindow *job, size, Py_ssize_t channels, full, offset, Plane slot
) except -1
