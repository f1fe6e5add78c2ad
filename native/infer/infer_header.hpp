// An infer request as described by its JSON header, and the faults that a header can have.
//
// Strategy: entries refer to flat vectors by index, and texts refer to the received bytes. A fault is a code, an offset
// and the numbers for a sentence; the sentences are written elsewhere. C++ without Python.
// infer/infer_header_reader.hpp fills these structs.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

#include "base/small_vector.hpp"
#include "tensor/datatype.hpp"

namespace ksrv {

struct Text {
    const char *data = nullptr;  // in the header, or in InferHeader::decoded
    std::size_t length = 0;

    bool is(const char *other, std::size_t size) const noexcept {
        return length == size && std::memcmp(data, other, size) == 0;
    }
    bool same(const Text &other) const noexcept { return is(other.data, other.length); }
};

enum ParameterKind : int { PARAM_STRING, PARAM_INT, PARAM_UINT, PARAM_FLOAT, PARAM_BOOL };

struct Parameter {
    Text key;
    ParameterKind kind = PARAM_BOOL;
    Text text;
    std::int64_t integer = 0;        // PARAM_INT; for PARAM_BOOL 0 or 1
    std::uint64_t unsigned_integer = 0;  // PARAM_UINT: a value above the int64 range
    double real = 0;
};

struct SharedMemory {
    bool given = false;
    Text region;
    std::uint64_t offset = 0;
    std::uint64_t byte_size = 0;
};

enum SizeForm : int { SIZE_ABSENT, SIZE_NUMBER, SIZE_LIST };

struct InputHeader {
    Text name;
    Datatype datatype = DT_INVALID;
    std::size_t shape_first = 0, rank = 0;        // in InferHeader::shapes
    std::uint64_t elements = 0, nbytes = 0;       // nbytes is 0 for BYTES, and elements for the shape [-1]
    bool has_data = false;
    std::size_t data_begin = 0, data_end = 0;     // of the brackets of `data`, as offsets
    SizeForm size_form = SIZE_ABSENT;
    std::uint64_t size = 0;                       // binary_data_size, or the sum of its list
    std::size_t sizes_first = 0, sizes_count = 0;  // in InferHeader::sizes
    std::size_t parameters_first = 0, parameters_count = 0;
    SharedMemory shared;
    std::size_t offset = 0, length = 0;           // of the tensor's block in the body
};

struct OutputHeader {
    Text name;
    int binary = -1;  // -1: not given
    std::uint64_t classification = 0;
    std::size_t parameters_first = 0, parameters_count = 0;
    SharedMemory shared;
};

struct InferHeader {
    Text id;
    int binary_output = -1;  // -1: not given
    int mark_final = -1;     // triton_enable_empty_final_response; -1: not given
    std::uint64_t timeout_us = 0, priority = 0;
    std::size_t json_length = 0;  // without white space after the object
    std::size_t parameters_first = 0, parameters_count = 0;
    SmallVector<InputHeader, 4> inputs;
    SmallVector<OutputHeader, 4> outputs;
    SmallVector<Parameter, 8> parameters;  // of the request, the inputs and the outputs
    SmallVector<std::int64_t, 16> shapes;
    SmallVector<std::uint64_t, 16> sizes;
    std::unique_ptr<char[]> decoded;  // strings that had escapes
    std::size_t decoded_length = 0;
};

struct HeaderLimits {
    unsigned depth = 64;
    std::size_t rank = MAX_RANK;
    std::int64_t dimension = MAX_DIMENSION;
    std::size_t inputs = 256;      // limit for inputs and for outputs
    std::size_t parameters = 256;  // limit for one object
    std::size_t size_list = 65536;
    std::uint64_t body = UINT64_MAX;
    bool open_texts = false;       // texts in `data` may have the shape [-1], as KServe's examples send them
};

enum HeaderError : int {
    HEADER_OK = 0,
    HEADER_EMPTY,             // only white space
    HEADER_END,               // the JSON is incomplete
    HEADER_SYNTAX,
    HEADER_DEPTH,
    HEADER_CONTROL,
    HEADER_ESCAPE,
    HEADER_UTF8,
    HEADER_TRAILING,          // bytes after the object: received = number of bytes
    HEADER_TYPE,              // `field` is not `wanted`
    HEADER_TWICE,             // a known key or parameter occurs twice: name
    HEADER_MISSING,           // `field` is missing
    HEADER_TOO_MANY,          // more than `expected` of `field`
    HEADER_DATATYPE,          // unknown datatype: name
    HEADER_DIMENSION,         // expected = index; not an integer from 0 to 2^31 - 1
    HEADER_NEGATIVE,          // expected = index
    HEADER_OVERFLOW,          // the product of the shape overflows
    HEADER_NUMBER,            // a parameter's number is out of range
    HEADER_RESERVED,          // an unknown triton_ parameter: name
    HEADER_DUPLICATE_NAME,    // two inputs or two outputs have this name
    HEADER_SIZE_INVALID,      // binary_data_size is neither an unsigned integer nor a list
    HEADER_DATA_AND_SIZE,     // both `data` and `binary_data_size`
    HEADER_DATA_AND_SHARED,   // a shared memory region beside `data` or `binary_data_size`
    HEADER_SIZE_MISMATCH,     // expected by the shape, received as binary_data_size
    HEADER_SIZE_LIST_COUNT,   // expected elements, received sizes
    HEADER_SIZE_ZERO,         // binary_data_size 0 for expected elements
    HEADER_BYTES_UNSIZED,     // BYTES without a size, and not the sole element of a sole input
    HEADER_NO_DATA,           // neither `data` nor bytes after the header: expected bytes
    HEADER_SHORT,             // expected bytes, but received fewer
    HEADER_SURPLUS,           // expected bytes after the header, but received more
    HEADER_MEMORY,            // out of memory
};

enum HeaderPlace : int { AT_REQUEST, AT_INPUT, AT_OUTPUT };

struct HeaderFault {
    HeaderError error = HEADER_OK;
    std::size_t offset = 0;
    HeaderPlace place = AT_REQUEST;
    std::size_t index = 0;        // of the input or output
    Text owner;                   // name of the input or output, if already known
    const char *field = "";
    const char *wanted = "";
    Text name;                    // the faulty name or word from the client
    std::uint64_t expected = 0, received = 0;
};

}  // namespace ksrv
