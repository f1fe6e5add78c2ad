# Needs no locks: objects do not change after construction.
"""Rows of different lengths: which rows share a batch, and how they are padded."""

cimport cython
from libc.stdint cimport uint32_t, uint64_t

from native.tensor.padding cimport FIRST_LENGTH_KEY

LENGTH_KEYS: int = FIRST_LENGTH_KEY
"""The batch key of a request whose rows have one length is LENGTH_KEYS + 4 * bucket, plus a number
below 4 for other differences between requests."""


@cython.final
cdef class LengthBuckets:
    """Which row lengths share a batch, and how far they are padded.

    Args:
        multiple: Padded lengths are multiples of this number.
        waste: The largest share of padding in a row, in addition to rounding up to `multiple`.
        most: The longest row.
    """

    def __cinit__(self, uint32_t multiple, double waste, uint32_t most):
        self.native = new CLengthBuckets(multiple, waste, most)

    def __dealloc__(self):
        del self.native

    def padded(self, uint64_t length) -> int:
        """Return the padded row length of a batch whose longest row has this length."""
        return self.native.padded(length)

    def bucket(self, uint64_t length) -> int:
        """Return the bucket of a length. Rows of the same bucket share batches."""
        return self.native.bucket(length)
