# Safe without the GIL: plans do not change, and each call has a separate job.
# cython: freethreading_compatible = True
"""Decodes JPEGs into rows of a batch, and resizes and converts them on the way, without the GIL.

A `RowPlan` is made once for a size of picture. It has everything that pictures of this size share,
so that decoding one needs only its bytes and its row.
"""

cimport cython
from libc.string cimport memcpy

from native.images.decode.jpeg_decoder cimport Decoded, PixelOrder
from native.images.resize.jpeg_batch cimport decode_jpeg_row
from native.images.resize.row_resize cimport ResizeKind

from ksrv._native.images.convert_pixels cimport Plane
from ksrv._native.images.row_resize cimport fill_window
from ksrv._native.memory.exported_bytes cimport ExportedBytes

from ksrv._native.images.jpeg_decoder import ORDERS
from ksrv._native.images.row_resize import KINDS, resizes_by_rows

if not cython.compiled:
    from collections.abc import Sequence

    from ksrv.request import Array, Element

cdef enum:
    BORDER = 32  # size of JpegRow.border


cdef class RowPlan:
    """How JPEGs of one size become rows of a batch.

    Args:
        size: Height and width of the decoded picture, after scaling down by `reduction`.
        slot: A row of the batch, [height, width, channels]. Only its layout is used, so that the
            plan fits every row.
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
            raise ValueError(f"a border of {len(border)} bytes is not a pixel of {slot.shape}")
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
        self.conversion = conversion  # kept alive, because the job refers to its coefficients
        self.shape = slot.shape
        self.job.part_offset = <size_t>(
            <const char *>inner.view.buf - <const char *>whole.view.buf
        )

    def decode(self, file: Element, row: Array) -> bool:
        """Decode a JPEG into a row.

        Args:
            row: Like the plan's row, C-ordered and writable.

        Returns:
            Whether the picture was decoded. If not, the row is zero and another decoder must read
            the file.
        """
        cdef Plane whole = Plane(row, "row", True)
        cdef ExportedBytes held
        cdef JpegRow job = self.job
        if row.shape != self.shape or not row.flags.c_contiguous:
            raise ValueError(f"a row of {row.shape} does not fit the plan's {self.shape}")
        held.take(file)
        job.jpeg.data, job.jpeg.size = held.data, held.length
        job.row = <unsigned char *>whole.view.buf
        with nogil:
            decode_jpeg_row(job)
        return job.result == Decoded.whole
