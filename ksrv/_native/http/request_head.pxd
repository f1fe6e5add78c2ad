"""The request-head classifier, for other native modules."""

from native.http.request_head cimport HeadLimits


cdef class HeadRules:
    cdef HeadLimits limits
