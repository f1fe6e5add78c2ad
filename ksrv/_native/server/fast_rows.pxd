"""The rows of a batch of fast-path requests, for the batch."""

from libc.stdint cimport uint32_t, uint64_t
from libcpp cimport bool as cbool
from libcpp.vector cimport vector

from ksrv._native.memory.buffer_pool cimport Block
from ksrv._native.queue.request_handle cimport CRequest
from ksrv._native.server.model_endpoint cimport ModelEndpoint
from ksrv._native.server.server cimport FAST_INPUTS, ModelSignature


cdef extern from "server/fast_rows.hpp" namespace "ksrv" nogil:
    cdef struct PictureSize:
        size_t input
        uint32_t height
        uint32_t width
        uint32_t channels

    cdef struct ImagePlace:
        size_t request
        size_t input
        size_t number
        uint64_t row

    cdef cppclass RowWriter:
        cbool read(CRequest **requests, size_t count, uint64_t row_length) noexcept
        void write(unsigned char *block, const size_t *starts, uint64_t first) noexcept
        cbool has_images() noexcept
        uint64_t rows
        uint64_t row_length
        size_t copied
        vector[PictureSize] missing
        vector[ImagePlace] left

    size_t place_inputs(
        const ModelSignature &signature, uint64_t rows, uint64_t row_length, size_t most,
        size_t *starts
    ) noexcept


cdef extern from "base/small_vector.hpp" nogil:
    cdef cppclass Requests "ksrv::SmallVector<ksrv::Request *, 32>":
        CRequest **extend(size_t count) noexcept


cdef class FastRows:
    cdef Block block
    cdef ModelEndpoint endpoint
    cdef object lease
    cdef uint64_t room, count
    cdef size_t starts[FAST_INPUTS]
    cdef uint64_t row_length  # of padded rows; 0 if rows are not padded

    # Adds rows of requests, copied or decoded once. Returns requests whose images cannot be
    # decoded, with their errors.
    cdef list add(self, list handles)

    # Drops the rows of requests that are not in `kept`. `handles` are all requests that were added.
    cdef int keep(self, list handles, set kept) except -1

    # The tensors of the current rows, by input.
    cdef dict tensors(self)


cdef FastRows ksrv_fast_rows(ModelEndpoint endpoint, object lease, uint64_t room)

# Makes resize plans for image sizes that occur for the first time.
cdef int ksrv_plan_images(ModelEndpoint endpoint, RowWriter &writer) except -1

# The tensors of one request, in the block that received it.
cdef dict ksrv_received_tensors(object handle)

# Whether a batch of only this request differs from the received bytes, by padding or a mask.
cdef bint ksrv_needs_padding(object handle) noexcept

# Whether a model's rows are padded, so that all requests of a batch are joined at once.
cdef bint ksrv_pads(object handle) noexcept

# Whether a request has encoded images.
cdef bint ksrv_has_images(object handle) noexcept
