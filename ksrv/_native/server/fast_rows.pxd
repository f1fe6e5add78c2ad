"""The rows of a batch of fast-path requests, for the batch."""

from libc.stdint cimport uint64_t

from ksrv._native.memory.buffer_pool cimport Block
from ksrv._native.server.model_endpoint cimport ModelEndpoint
from ksrv._native.server.server cimport FAST_INPUTS


cdef class FastRows:
    cdef Block block
    cdef ModelEndpoint endpoint
    cdef object lease
    cdef uint64_t room, count
    cdef uint64_t starts[FAST_INPUTS]
    cdef uint64_t row_length  # of the padded rows; 0 where they are not padded

    # Adds rows of requests, each copied or decoded once. Returns those whose images cannot be
    # decoded, with their errors.
    cdef list add(self, list handles)

    # Drops the rows of the requests that are not kept; `handles` are all that were added.
    cdef int keep(self, list handles, set kept) except -1

    # The tensors of the rows that are there, by input.
    cdef dict tensors(self)


cdef FastRows ksrv_fast_rows(ModelEndpoint endpoint, object lease, uint64_t room)

# The tensors of one request, in the block that it was received in.
cdef dict ksrv_received_tensors(object handle)

# Whether a batch of a request alone differs from what was received: padding, or a mask.
cdef bint ksrv_needs_padding(object handle) noexcept

# Whether the rows of a model's requests are padded, so that they are joined all at once.
cdef bint ksrv_pads(object handle) noexcept

# Whether a request has encoded images.
cdef bint ksrv_has_images(object handle) noexcept
