from libc.stdint cimport uint8_t, uint32_t
from libcpp.memory cimport unique_ptr

from ksrv._native.images.convert_pixels cimport Coefficients, PixelTarget, Plane
from ksrv._native.images.jpeg_decoder cimport RowReceiver


cdef extern from "images/resize/window.hpp" namespace "ksrv" nogil:
    cdef cppclass ResizeWindow:
        size_t height
        size_t width
        size_t channels
        size_t full_height
        size_t full_width
        size_t top
        size_t left
        size_t out_height
        size_t out_width


cdef extern from "images/resize/row_resize.hpp" namespace "ksrv" nogil:
    cdef enum class ResizeKind(int):
        linear_floats
        linear_bytes
        area
        pillow

    cdef cppclass RowResize(RowReceiver):
        bint prepare() noexcept

    bint c_resizes_by_rows "ksrv::resizes_by_rows"(
        ResizeKind kind, const ResizeWindow &window
    ) noexcept
    unique_ptr[RowResize] make_row_resize(
        ResizeKind kind, const ResizeWindow &window, int sample, const PixelTarget &target,
        const Coefficients &coefficients
    ) noexcept


cdef int fill_window(
    ResizeWindow *job, size, Py_ssize_t channels, full, offset, Plane slot
) except -1
