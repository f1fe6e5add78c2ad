"""The rows that a batch joins, for the batch."""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libcpp cimport bool as cbool
from libcpp.vector cimport vector

from ksrv._native.queue.request_handle cimport CRequest
from ksrv._native.server.fast_images cimport EncodedImage
from ksrv._native.server.model_endpoint cimport ModelEndpoint
from ksrv._native.server.server cimport FastRequest, InputSignature


cdef extern from "infer/fast_request.hpp" namespace "ksrv" nogil:
    cdef struct RowSource:
        const unsigned char *data
        const EncodedImage *images
        const int64_t *tail
        uint64_t rows
        uint64_t row_length
        cbool apart


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
        void begin(const vector[InputSignature] &inputs) noexcept
        RowSource *add(const CRequest &request, uint64_t request_rows) except +
        void add(const FastRequest &request) except +
        void plan(uint64_t padded_length) except +
        void write(unsigned char *const *to) noexcept
        cbool has_images() noexcept
        uint64_t rows
        uint64_t row_length
        size_t copied
        vector[PictureSize] missing
        vector[ImagePlace] left


cdef class JoinedRows:
    cdef ModelEndpoint endpoint   # of the fast-path requests, or None
    cdef object model             # prepares images
    cdef object lease             # returns a block of so many bytes
    cdef list inputs              # for each input its form, see `RowForm` in padding.py
    cdef list blocks              # for each input its block, or None
    # The native forms of the inputs: of the endpoint, or of `parsed_signatures`.
    cdef const vector[InputSignature] *signatures
    cdef vector[InputSignature] parsed_signatures
    cdef uint64_t room, count     # rows that the blocks have room for, and rows that they have
    cdef uint64_t row_length      # of padded rows
    cdef uint64_t largest         # of the first dimensions of arrays, which need not be batched

    # Adds rows of requests, copied or decoded once. Returns requests whose images cannot be
    # decoded, with their errors.
    cdef list add(self, list handles)

    # Drops the rows of requests that are not in `kept`. `handles` are all requests that were added.
    cdef int keep(self, list handles, set kept) except -1

    # The tensors of the current rows, by input. `handles` are the requests.
    cdef dict tensors(self, list handles)


cdef JoinedRows ksrv_joined_rows(object model, object lease, list handles, uint64_t room)

# Makes resize plans for image sizes that occur for the first time.
cdef int ksrv_plan_images(ModelEndpoint endpoint, RowWriter &writer) except -1

# The tensors of one fast-path request, in the block that received it.
cdef dict ksrv_received_tensors(object handle)

# Whether a batch of only this request differs from what was received, by padding or a mask.
cdef bint ksrv_needs_padding(object handle, object model) except -1

# Whether rows are padded, so that all requests of a batch are joined at once.
cdef bint ksrv_pads(object handle) except -1

# Whether a request has encoded images.
cdef bint ksrv_has_images(object handle) except -1
