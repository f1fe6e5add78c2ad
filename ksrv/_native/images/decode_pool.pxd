"""The pool of decoding threads, for the other compiled modules."""

from native.images.decode.pool cimport DecodePool as CDecodePool


cdef class DecodePool:
    cdef CDecodePool *pool
