from native.images.resize.window cimport ResizeWindow

from ksrv._native.images.convert_pixels cimport Plane


cdef int fill_window(
    ResizeWindow *job, size, Py_ssize_t channels, full, offset, Plane slot
) except -1
