"""C declarations of native/tensor/datatype.hpp for the other compiled modules."""

from libc.stdint cimport int64_t, uint64_t


cdef extern from "tensor/datatype.hpp" namespace "ksrv" nogil:
    cdef enum:
        RANK_LIMIT "ksrv::MAX_RANK"

    const int64_t DIMENSION_LIMIT "ksrv::MAX_DIMENSION"

    cdef enum Datatype:
        DT_INVALID
        DT_BOOL
        DT_UINT8
        DT_UINT16
        DT_UINT32
        DT_UINT64
        DT_INT8
        DT_INT16
        DT_INT32
        DT_INT64
        DT_FP16
        DT_BF16
        DT_FP32
        DT_FP64
        DT_BYTES
        DT_COUNT

    cdef enum SizeError:
        SIZE_OK

    cdef struct SizeLimits:
        size_t rank
        int64_t dimension
        uint64_t bytes

    cdef struct DatatypeInfo:
        const char *name
        size_t name_length
        size_t item_size
        const char *dtype
        const char *tensor_name
        int contents

    DatatypeInfo DATATYPES[DT_COUNT]

    Datatype datatype_of(const char *name, size_t length)
    size_t item_size_of(Datatype datatype)
    SizeError checked_nbytes(
        const int64_t *shape, size_t rank, size_t item_size, const SizeLimits &limits,
        uint64_t *elements, uint64_t *nbytes, size_t *where
    )
