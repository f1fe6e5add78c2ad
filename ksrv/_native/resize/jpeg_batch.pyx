# A plan does not change; every call works on its own jobs.
# cython: freethreading_compatible = True
"""The JPEGs of a batch, decoded into its rows without the GIL."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdlib cimport calloc, free
from libcpp.vector cimport vector

from ksrv._native.image.convert_pixels cimport Coefficients, Conversion, PixelTarget, Plane
from ksrv._native.image.decode_pool cimport CDecodePool, DecodePool
from ksrv._native.image.jpeg_decoder cimport Decoded, JpegJob, PixelOrder
from ksrv._native.queue.request_handle cimport AtomicInt, NativeHandle
from ksrv._native.resize.row_resize cimport ResizeKind, ResizeWindow, fill_window

from ksrv._native.image.jpeg_decoder import ORDERS
from ksrv._native.resize.row_resize import KINDS, resizes_by_rows


cdef extern from "resize/jpeg_batch.hpp" namespace "ksrv" nogil:
    cdef cppclass BatchedJpeg:
        JpegJob jpeg
        ResizeKind kind
        ResizeWindow window
        PixelTarget target
        const Coefficients *coefficients
        const AtomicInt *ended
        Decoded result
        bint passed_over

    void decode_jpegs(CDecodePool &pool, BatchedJpeg *jpegs, size_t count, size_t chunks) noexcept


cdef class RowPlan:
    """How JPEGs of one size become rows of a batch.

    Args:
        size: Height and width of the decoded picture, which `reduction` has divided.
        slot: A row of the batch, [height, width, channels]; only its layout is looked at.
        part: Top, left, height and width of the part of the row that the picture fills.
        conversion: From the resized values to the numbers of the row.
        full: Height and width of the whole resized picture.
        offset: Top and left of the part in it.
        kind: One of `row_resize.KINDS` that `resizes_by_rows`.
        order: One of `jpeg_decoder.ORDERS`.
        reduction: By what the decoder scales down: 1, 2, 4 or 8.
        bfloat16: Whether a row of uint16 holds the bit patterns of BF16.

    Raises:
        ValueError: Sizes, channels or types that do not fit.
    """

    cdef BatchedJpeg job
    cdef Conversion conversion
    cdef tuple shape
    cdef Py_ssize_t offset

    def __cinit__(
        self, *, size, slot, part, Conversion conversion not None, full, offset, str kind,
        str order, int reduction, bint bfloat16
    ):
        cdef Py_ssize_t channels = 1 if order == "GRAY" else 3
        top, left, height, width = part
        cdef Plane whole = Plane(slot, "row", True)
        cdef Plane inner = Plane(slot[top:top + height, left:left + width], "row", True)
        if reduction not in (1, 2, 4, 8):
            raise ValueError(f"a JPEG is reduced by 1, 2, 4 or 8, not {reduction}")
        if not resizes_by_rows(kind, size, full):
            raise ValueError(f"the resize {kind!r} of {size} to {full} needs the whole picture")
        if inner.height != height or inner.width != width:
            raise ValueError(f"the part {part} lies outside of a row of {slot.shape}")
        conversion.aim(inner, channels, False, bfloat16, &self.job.target)
        fill_window(&self.job.window, size, channels, full, offset, inner)
        self.job.kind = <ResizeKind><int>KINDS[kind]
        self.job.jpeg.order = <PixelOrder><int>ORDERS[order]
        self.job.jpeg.reduction = <unsigned int>reduction
        self.job.jpeg.height, self.job.jpeg.width = size
        self.job.coefficients = &conversion.coefficients
        self.conversion = conversion
        self.shape = slot.shape
        self.offset = <const char *>inner.view.buf - <const char *>whole.view.buf


WHOLE, ELSEWHERE, ENDED = range(3)
"""What became of a picture: decoded; left to another decoder; passed over with its request."""


def decode_rows(
    DecodePool pool not None, list plans not None, list files not None, list rows not None, out,
    list requests, Py_ssize_t chunks
):
    """Decode JPEGs into rows of a batch.

    Args:
        pool: The threads that share the work.
        plans: The `RowPlan` of each picture.
        files: The whole file of each.
        rows: The row of each.
        out: [rows, height, width, channels], C-ordered and writable, of the plans' row.
        requests: The handle of each picture's request, or None; None for no requests.
        chunks: How many pieces to make of the work; 1 for this thread alone.

    Returns:
        WHOLE, ELSEWHERE or ENDED for each. The rows of the latter two hold anything.

    Raises:
        ValueError: Lengths, rows or a layout that do not fit.
        MemoryError: There is no memory for the list.
        BufferError: `out` is read-only.
    """
    cdef Py_ssize_t count = len(plans), held = 0, i, row
    cdef RowPlan plan
    cdef vector[BatchedJpeg] jobs
    cdef Py_buffer *views
    cdef Py_buffer *view
    cdef Plane first
    cdef NativeHandle request
    cdef bint fits = len(files) == count and len(rows) == count
    if not fits or (requests is not None and len(requests) != count):
        raise ValueError(f"there are {count} plans, {len(files)} files and {len(rows)} rows")
    if count == 0:
        return []
    if not out.flags.c_contiguous:
        raise ValueError("the batch is not C-ordered")
    cdef Py_ssize_t most = len(out), row_bytes = out.strides[0]
    cdef tuple shape = out.shape[1:]
    first = Plane(out[0], "batch", True)
    views = <Py_buffer *>calloc(<size_t>count, sizeof(Py_buffer))
    if views == NULL:
        raise MemoryError("there is no memory for a batch of images")
    try:
        jobs.resize(<size_t>count)
        for i in range(count):
            plan, row = plans[i], rows[i]
            if not 0 <= row < most or plan.shape != shape:
                raise ValueError(f"row {row} of {plan.shape} is not in a batch of {out.shape}")
            PyObject_GetBuffer(files[i], &views[i], PyBUF_SIMPLE)
            held += 1
            view = &views[i]
            jobs[i] = plan.job
            jobs[i].jpeg.data = <const unsigned char *>view.buf
            jobs[i].jpeg.size = <size_t>view.len
            jobs[i].target.data = (
                <unsigned char *>first.view.buf + row * row_bytes + plan.offset
            )
            if requests is not None and requests[i] is not None:
                request = requests[i]
                jobs[i].ended = &request.native.done
        with nogil:
            decode_jpegs(
                pool.pool[0], jobs.data(), <size_t>count, <size_t>max(1, min(chunks, count))
            )
        return [
            ENDED if jobs[i].passed_over
            else WHOLE if jobs[i].result == Decoded.whole
            else ELSEWHERE
            for i in range(count)
        ]
    finally:
        for i in range(held):
            PyBuffer_Release(&views[i])
        free(views)
