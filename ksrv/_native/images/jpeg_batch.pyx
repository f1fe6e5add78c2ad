# Needs the GIL: the dict of a plan table. Plans do not change, and each call has separate jobs.
"""The JPEGs of a batch, decoded into its rows without the GIL."""

cimport cython
from libc.stdint cimport uint32_t
from libc.string cimport memcpy
from libcpp.deque cimport deque
from libcpp.vector cimport vector

from native.images.decode.jpeg_decoder cimport Decoded, PixelOrder
from native.images.decode.memory cimport process_decode_memory
from native.images.resize.jpeg_batch cimport decode_jpegs
from native.images.resize.row_resize cimport ResizeKind

from ksrv._native.images.convert_pixels cimport Plane
from ksrv._native.images.decode_pool cimport DecodePool
from ksrv._native.images.row_resize cimport fill_window
from ksrv._native.memory.exported_bytes cimport ExportedBytes
from ksrv._native.queue.request_handle cimport NativeHandle

from ksrv._native.images.jpeg_decoder import ORDERS
from ksrv._native.images.row_resize import KINDS, resizes_by_rows

if not cython.compiled:
    from collections.abc import Callable, Sequence

    from ksrv._native.images.image_header import Header
    from ksrv.request import Array, Element

cdef enum:
    BORDER = 32  # size of JpegRow.border


cdef class RowPlan:
    """How JPEGs of one size become rows of a batch.

    Args:
        size: Height and width of the decoded picture, after scaling down by `reduction`.
        slot: A row of the batch, [height, width, channels]. Only its layout is used.
        part: Top, left, height and width of the part of the row that the picture fills.
        conversion: From the resized values to the numbers of the row.
        full: Height and width of the whole resized picture.
        offset: Top and left of the part in it.
        kind: One of `row_resize.KINDS` that `resizes_by_rows`.
        order: One of `jpeg_decoder.ORDERS`.
        reduction: The factor by which the decoder scales down: 1, 2, 4 or 8.
        bfloat16: Whether a row of uint16 holds the bit patterns of BF16.
        border: One pixel, in the row's datatype, that fills the row around the part. Empty for
            none.

    Raises:
        ValueError: Sizes, channels or types that do not fit.
    """

    def __cinit__(
        self,
        *,
        size: Sequence[int],
        slot: Array,
        part: Sequence[int],
        Conversion conversion not None,
        full: Sequence[int],
        offset: Sequence[int],
        str kind,
        str order,
        int reduction,
        bint bfloat16,
        bytes border=b"",
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
        if len(border) > BORDER or (border and whole.channels * slot.itemsize != len(border)):
            raise ValueError(f"a border of {len(border)} bytes is no pixel of {slot.shape}")
        conversion.aim(inner, channels, bfloat16, &self.job.target)
        fill_window(&self.job.window, size, channels, full, offset, inner)
        self.job.kind = <ResizeKind><int>KINDS[kind]
        self.job.jpeg.order = <PixelOrder><int>ORDERS[order]
        self.job.jpeg.reduction = <unsigned int>reduction
        self.job.jpeg.height, self.job.jpeg.width = size
        self.job.coefficients = &conversion.coefficients
        self.job.border_bytes = <size_t>len(border)
        memcpy(self.job.border, <const char *>border, <size_t>len(border))
        self.job.row_bytes = <size_t>slot.nbytes
        self.conversion = conversion
        self.shape = slot.shape
        self.job.part_offset = <size_t>(
            <const char *>inner.view.buf - <const char *>whole.view.buf
        )


cdef class PlanTable:
    """The plans of one image input for rows of one shape, by picture size.

    Args:
        make: Returns the `RowPlan` for the height, width and channels of a picture, or None if the
            picture cannot be decoded row by row.
        most: How many plans to keep. When the table is full it is emptied.
    """

    def __init__(self, make not None: Callable[[int, int, int], RowPlan | None], Py_ssize_t most):
        self.make = make
        self.most = most
        self.plans = {}

    def find(self, uint32_t height, uint32_t width, uint32_t channels) -> RowPlan | None:
        """Return the plan for a picture, or None if it cannot be decoded row by row.

        Args:
            channels: 1 or 3.
        """
        cdef object key = (height, width, channels)
        cdef JpegRow no_plan
        cdef dict plans = self.plans  # keep this dict: another thread may replace it meanwhile
        if key in plans:
            return plans[key]
        if len(plans) >= self.most:
            plans = self.plans = {}
            self.native.forget()
        made = self.make(height, width, channels)
        self.native.keep(height, width, channels, no_plan if made is None else (<RowPlan?>made).job)
        plans[key] = made
        return made


WHOLE = 0
ELSEWHERE = 1
ENDED = 2
"""Results of `decode_rows`: decoded; left to another decoder; skipped because its request ended."""


def decode_rows(
    DecodePool pool not None,
    list plans not None: list[RowPlan],
    list files not None: list[Element],
    list headers not None: list[Header],
    list rows not None: list[int],
    out: Array,
    list requests: list[NativeHandle | None] | None,
    *,
    bint upright,
) -> list[int]:
    """Decode JPEGs into rows of a batch.

    Args:
        plans: The `RowPlan` of each picture.
        files: The encoded bytes of each picture.
        headers: The `Header` of each picture.
        rows: The row number of each picture.
        out: [rows, height, width, channels], C-ordered and writable, of the plans' row.
        requests: The handle of each picture's request (or None), or None for no requests.
        upright: Whether to turn pictures as EXIF says. Plans are then for the turned sizes.

    Returns:
        WHOLE, ELSEWHERE or ENDED for each picture. Rows that were not decoded are zero.

    Raises:
        ValueError: Lengths, rows or a layout that do not fit.
        MemoryError: Not enough memory for the list.
        BufferError: `out` is read-only.
    """
    cdef Py_ssize_t count = len(plans), i, row
    cdef RowPlan plan
    cdef vector[JpegRow] jobs
    cdef deque[ExportedBytes] held
    cdef Plane first
    cdef NativeHandle request
    cdef bint fits = len(files) == count and len(rows) == count and len(headers) == count
    if not fits or (requests is not None and len(requests) != count):
        raise ValueError(f"there are {count} plans, {len(files)} files and {len(rows)} rows")
    if count == 0:
        return []
    if not out.flags.c_contiguous:
        raise ValueError("the batch is not C-ordered")
    cdef Py_ssize_t most = len(out), row_bytes = out.strides[0]
    cdef tuple shape = out.shape[1:]
    first = Plane(out[0], "batch", True)
    jobs.resize(<size_t>count)
    held.resize(<size_t>count)
    for i in range(count):
        plan, row = plans[i], rows[i]
        if not 0 <= row < most or plan.shape != shape:
            raise ValueError(f"row {row} of {plan.shape} is not in a batch of {out.shape}")
        held[i].take(files[i])
        jobs[i] = plan.job
        jobs[i].jpeg.data = held[i].data
        jobs[i].jpeg.size = held[i].length
        jobs[i].row = <unsigned char *>first.view.buf + row * row_bytes
        jobs[i].decode_ns = headers[i].decode_ns
        jobs[i].decoder_bytes = headers[i].row_decoder_bytes
        if upright:
            jobs[i].orientation = headers[i].orientation
        if requests is not None and requests[i] is not None:
            request = requests[i]
            jobs[i].ended = &request.native.done
    with nogil:
        decode_jpegs(pool.pool[0], process_decode_memory(), jobs.data(), <size_t>count)
    return [
        ENDED if jobs[i].passed_over
        else WHOLE if jobs[i].result == Decoded.whole
        else ELSEWHERE
        for i in range(count)
    ]
