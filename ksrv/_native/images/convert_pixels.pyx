# Safe without the GIL: a Conversion is written only by its initialiser.
# cython: freethreading_compatible = True
"""Converts the pixels of a picture to a model's input: order of channels, scale, mean, datatype.

A conversion reads C-ordered pixels of numpy arrays (rows may have gaps) and writes into memory of
the caller. It allocates nothing and releases the GIL. native/images/convert_pixels.hpp has the
arithmetic.
"""

from cpython.buffer cimport (
    PyBUF_FORMAT, PyBUF_STRIDES, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer,
)
cimport cython

from native.images.convert_pixels cimport (
    ARITHMETIC_EXACT, ARITHMETIC_FAST, ARITHMETIC_NONE, PIXEL_F32, PIXEL_F64, PIXEL_I16, PIXEL_U16,
    PIXEL_U8, PixelSource, convert_pixels,
)
from native.tensor.datatype cimport (
    DT_BF16, DT_FP16, DT_FP32, DT_FP64, DT_INT16, DT_INT32, DT_INT8, DT_UINT16, DT_UINT8,
)

if not cython.compiled:
    from collections.abc import Sequence
    from typing import Any

    import numpy.typing as npt


cdef dict _PIXEL_TYPES = {
    "B": PIXEL_U8, "H": PIXEL_U16, "h": PIXEL_I16, "f": PIXEL_F32, "d": PIXEL_F64,
}
cdef dict _DATATYPES = {
    "f": DT_FP32, "d": DT_FP64, "e": DT_FP16, "B": DT_UINT8, "b": DT_INT8, "H": DT_UINT16,
    "h": DT_INT16, "i": DT_INT32,
}


cdef class Plane:
    """The buffer of one picture: [height, width] or [height, width, channels].

    Raises:
        ValueError: The picture has another rank, too many pixels or channels, gaps within a row, or
            items that are not aligned.
        BufferError: `picture` is read-only, but `writable` is True.
    """

    def __cinit__(self, object picture, str role, bint writable=False):
        PyObject_GetBuffer(
            picture, &self.view, PyBUF_STRIDES | PyBUF_FORMAT | (PyBUF_WRITABLE if writable else 0)
        )
        self.held = True
        cdef Py_buffer *view = &self.view
        cdef Py_ssize_t item = view.itemsize
        cdef Py_ssize_t rank = view.ndim
        cdef Py_ssize_t i
        self.format = (<bytes>view.format).decode("ascii").lstrip("<=@")
        if rank != 2 and rank != 3:
            raise ValueError(f"the {role} has {rank} dimensions, not 2 or 3")
        for i in range(rank):
            if view.shape[i] > MAX_SIDE:
                raise ValueError(f"the {role} has a side above {<int>MAX_SIDE}")
        self.height, self.width = view.shape[0], view.shape[1]
        self.channels = view.shape[2] if rank == 3 else 1
        self.row_bytes = view.strides[0]
        packed = (
            (rank == 2 or view.strides[2] == item or self.channels <= 1)
            and (view.strides[1] == item * self.channels or self.width <= 1)
        )
        if not packed:
            raise ValueError(f"the pixels of a row of the {role} are not contiguous")
        if <size_t>view.buf % item or self.row_bytes % item:
            raise ValueError(f"the {role} is not aligned to its items")
        if not 1 <= self.channels <= 4:
            raise ValueError(f"the {role} has {self.channels} channels, not 1 to 4")

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.view)


cdef class Conversion:
    """How pixels become numbers: which channels, which arithmetic.

    Args:
        channels: For each channel of the result, the source channel to copy: (2, 1, 0) turns BGR
            into RGB. None keeps all channels in order.
        scale: The values are divided by it first.
        mean: Subtracted from the reordered channels: one value for each channel, one for all, or
            none.
        std: Divides the result: one value for each channel, one for all, or none.
        exact: Compute ((x / scale) - mean) / std rounding each step to the result's precision,
            rather than x * a + b.

    Raises:
        ValueError: More than four channels, a zero divisor, or lengths that do not match.
    """

    def __cinit__(
        self,
        *,
        channels: Sequence[int] | None = None,
        double scale=1.0,
        mean: Sequence[float] = (),
        std: Sequence[float] = (),
        bint exact=False,
    ):
        mean, std = tuple(mean), tuple(std)
        self.order = None if channels is None else tuple(channels)
        if self.order is not None and not 1 <= len(self.order) <= 4:
            raise ValueError(f"a conversion has 1 to 4 channels, not {len(self.order)}")
        lengths = {len(values) for values in (mean, std) if len(values) > 1}
        if len(lengths) > 1 or (lengths and max(lengths) > 4):
            raise ValueError(f"mean has {len(mean)} values and std has {len(std)}")
        self.values = lengths.pop() if lengths else 0
        if self.order is not None and self.values and self.values != len(self.order):
            raise ValueError(f"there are {len(self.order)} channels and {self.values} values")
        if scale == 0 or 0 in std:
            raise ValueError("scale and std are divisors and cannot be 0")
        cdef Py_ssize_t i
        self.coefficients.scale = scale
        for i in range(4):
            self.coefficients.mean[i] = self._value(mean, i, 0.0)
            self.coefficients.std[i] = self._value(std, i, 1.0)
        if scale == 1 and not any(mean) and all(value == 1 for value in std):
            self.coefficients.arithmetic = ARITHMETIC_NONE
        elif exact:
            self.coefficients.arithmetic = ARITHMETIC_EXACT
        else:
            self.coefficients.arithmetic = ARITHMETIC_FAST

    cdef double _value(self, tuple values, Py_ssize_t i, double default):
        if len(values) == 1:
            return values[0]
        return values[i] if i < len(values) else default

    @property
    def keeps_values(self) -> bool:
        """Whether values do not change, apart from their datatype and the order of channels."""
        return self.coefficients.arithmetic == ARITHMETIC_NONE

    def __call__(
        self,
        source: npt.NDArray[Any],
        target: npt.NDArray[Any],
        *,
        bint bfloat16=False,
    ) -> None:
        """Convert every pixel of `source` into `target`.

        Values are rounded to nearest, ties to even, and saturated if `target` holds integers.

        Args:
            source: [height, width] or [height, width, channels] of uint8, uint16, int16, float32
                or float64.
            target: The same height and width, of float32, float64, float16, uint8, int8, uint16,
                int16 or int32.
            bfloat16: Whether a uint16 `target` holds the bit patterns of BF16.

        Raises:
            ValueError: Sizes, channels or types that do not fit, or pixels that are not contiguous
                within a row.
            BufferError: `target` is read-only.
        """
        cdef Plane a = Plane(source, "source")
        cdef Plane b = Plane(target, "target", True)
        cdef PixelSource from_
        cdef PixelTarget to
        if a.height != b.height or a.width != b.width:
            raise ValueError(
                f"the source is {a.width}x{a.height} and the target {b.width}x{b.height}"
            )
        if a.format not in _PIXEL_TYPES:
            raise ValueError(f"pixels of format {a.format!r} cannot be converted")
        self.aim(b, a.channels, bfloat16, &to)
        from_.data = <const unsigned char *>a.view.buf
        from_.type = _PIXEL_TYPES[a.format]
        from_.height, from_.width = <size_t>a.height, <size_t>a.width
        from_.channels = <size_t>a.channels
        from_.row_bytes = a.row_bytes
        with nogil:
            convert_pixels(from_, to, self.coefficients)

    cdef int aim(self, Plane b, Py_ssize_t channels, bint bfloat16, PixelTarget *to) except -1:
        """Fill `to` with the memory of `b`, which receives pixels of `channels` channels."""
        cdef Py_ssize_t i
        cdef int channel
        if b.format not in _DATATYPES:
            raise ValueError(f"pixels cannot be converted to format {b.format!r}")
        cdef Py_ssize_t expected = channels if self.order is None else len(self.order)
        if bfloat16 and b.format != "H":
            raise ValueError("BF16 is stored as uint16")
        if b.channels != expected or (self.values and self.values != b.channels):
            raise ValueError(f"the target has {b.channels} channels, not {self.values or expected}")
        for i in range(b.channels):
            channel = i if self.order is None else self.order[i]
            if not 0 <= channel < channels:
                raise ValueError(f"the source has no channel {channel}")
            to.from_[i] = channel
        to.data = <unsigned char *>b.view.buf
        to.datatype = DT_BF16 if bfloat16 else _DATATYPES[b.format]
        to.channels = <size_t>b.channels
        to.row_bytes = b.row_bytes
        return 0
