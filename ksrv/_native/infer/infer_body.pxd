"""C declarations for infer_header_reader.hpp and the headers that it includes."""

from libc.stdint cimport int64_t, uint64_t
from libcpp cimport bool as cbool

from ksrv._native.tensor.datatype cimport Datatype


cdef extern from "infer/infer_header_reader.hpp" namespace "ksrv" nogil:
    cdef struct Text:
        const char *data
        size_t length

    cdef enum ParameterKind:
        PARAM_STRING
        PARAM_INT
        PARAM_UINT
        PARAM_FLOAT

    cdef struct Parameter:
        Text key
        ParameterKind kind
        Text text
        int64_t integer
        uint64_t unsigned_integer
        double real

    cdef struct SharedMemory:
        bint given
        Text region
        uint64_t offset
        uint64_t byte_size

    cdef enum SizeForm:
        SIZE_LIST

    cdef struct InputHeader:
        Text name
        Datatype datatype
        size_t shape_first
        size_t rank
        uint64_t elements
        uint64_t nbytes
        bint has_data
        size_t data_begin
        size_t data_end
        SizeForm size_form
        uint64_t size
        size_t sizes_first
        size_t sizes_count
        size_t parameters_first
        size_t parameters_count
        SharedMemory shared
        size_t offset
        size_t length

    cdef struct OutputHeader:
        Text name
        int binary
        uint64_t classification
        size_t parameters_first
        size_t parameters_count
        SharedMemory shared

    cdef cppclass Inputs "ksrv::SmallVector<ksrv::InputHeader, 4>":
        size_t size()
        InputHeader &operator[](size_t index)

    cdef cppclass Outputs "ksrv::SmallVector<ksrv::OutputHeader, 4>":
        size_t size()
        OutputHeader &operator[](size_t index)

    cdef cppclass ParameterPool "ksrv::SmallVector<ksrv::Parameter, 8>":
        size_t size()
        Parameter &operator[](size_t index)

    cdef cppclass Shapes "ksrv::SmallVector<std::int64_t, 16>":
        size_t size()
        int64_t &operator[](size_t index)

    cdef cppclass Sizes "ksrv::SmallVector<std::uint64_t, 16>":
        size_t size()
        uint64_t &operator[](size_t index)

    cdef cppclass InferHeader:
        Text id
        int binary_output
        int mark_final
        uint64_t timeout_us
        uint64_t priority
        size_t json_length
        size_t parameters_first
        size_t parameters_count
        Inputs inputs
        Outputs outputs
        ParameterPool parameters
        Shapes shapes
        Sizes sizes

    cdef struct HeaderLimits:
        unsigned depth
        size_t rank
        int64_t dimension
        size_t inputs
        size_t parameters
        size_t size_list
        bint open_texts

    cdef enum HeaderError:
        HEADER_OK
        HEADER_EMPTY
        HEADER_END
        HEADER_SYNTAX
        HEADER_DEPTH
        HEADER_CONTROL
        HEADER_ESCAPE
        HEADER_UTF8
        HEADER_TRAILING
        HEADER_TYPE
        HEADER_TWICE
        HEADER_MISSING
        HEADER_TOO_MANY
        HEADER_DATATYPE
        HEADER_DIMENSION
        HEADER_NEGATIVE
        HEADER_OVERFLOW
        HEADER_NUMBER
        HEADER_RESERVED
        HEADER_DUPLICATE_NAME
        HEADER_SIZE_INVALID
        HEADER_DATA_AND_SIZE
        HEADER_DATA_AND_SHARED
        HEADER_SIZE_MISMATCH
        HEADER_SIZE_LIST_COUNT
        HEADER_SIZE_ZERO
        HEADER_BYTES_UNSIZED
        HEADER_NO_DATA
        HEADER_SHORT
        HEADER_SURPLUS
        HEADER_MEMORY

    cdef enum HeaderPlace:
        pass

    cdef cppclass HeaderFault:
        HeaderError error
        size_t offset
        HeaderPlace place
        size_t index
        Text owner
        const char *field
        const char *wanted
        Text name
        uint64_t expected
        uint64_t received

    HeaderError scan_infer_header(
        const char *data, size_t length, const HeaderLimits &limits, InferHeader *header,
        HeaderFault *fault
    )

cdef extern from "infer/tensor_blocks.hpp" namespace "ksrv" nogil:
    HeaderError split_blocks(
        InferHeader *header, size_t json_length, size_t body_length, HeaderFault *fault
    )
    size_t find_not_bool(const unsigned char *data, size_t length)


cdef extern from "json/scanner.hpp" namespace "ksrv::json" nogil:
    cdef struct Cursor:
        const char *at
        const char *end

    bint parse_digits(
        Cursor &cursor, unsigned most_digits, uint64_t limit, uint64_t *value, cbool *too_large
    )
