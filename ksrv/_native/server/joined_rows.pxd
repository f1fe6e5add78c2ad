"""The rows that a batch joins, for the batch."""

from libc.stdint cimport uint64_t
from libcpp.vector cimport vector

from native.infer.model_signature cimport InputSignature
from native.server.fast_rows cimport RowWriter

from ksrv._native.server.model_endpoint cimport ModelEndpoint


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
