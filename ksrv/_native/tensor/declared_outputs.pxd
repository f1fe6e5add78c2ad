"""Declared outputs for the other compiled modules."""

cimport numpy as cnp
from libc.stdint cimport int64_t
from libcpp.vector cimport vector


cdef class DeclaredOutputs:
    cdef list names
    cdef list datatypes
    cdef list dtypes
    cdef vector[vector[int64_t]] tails
    cdef list shapes_of_one    # shapes of outputs with one row

    cdef list tensors(self, object result, int64_t rows)
    cdef bint fits(self, cnp.ndarray array, Py_ssize_t place, int64_t rows) noexcept
