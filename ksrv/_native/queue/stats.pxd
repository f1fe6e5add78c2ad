"""Counts and times of an instance, for other compiled modules."""

from native.queue.stats cimport Sums


cdef class Stats:
    cdef Sums sums
