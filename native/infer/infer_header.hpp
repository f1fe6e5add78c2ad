// An infer request as described by its JSON header, and the faults that a header can have, without Python.
// infer/infer_header_reader.hpp fills these structs.
//
// Strategy: shapes, sizes and parameters of all inputs are in flat vectors; an input has its first index and its count.
// Texts are views of the received bytes, or of `decoded` if they had escapes. A fault is a code, an offset and the
// values for an error message, which Python writes.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string_view>

#include "base/small_vector.hpp"
#include "tensor/datatype.hpp"

namespace ksrv {

// Whether a text is a literal. The compiler expands the comparison, because it knows the length; it does not for `==`.
template <std::size_t N>
bool is(std::string_view text, const char (&literal)[N]) noexcept {
    return text.size() == N - 1 && std::memcmp(text.data(), literal, N - 1) == 0;
}

enum ParameterKind : int { PARAM_STRING, PARAM_INT, PARAM_UINT, PARAM_FLOAT, PARAM_BOOL };

struct Parameter {
    std::string_view key;
    ParameterKind kind = PARAM_BOOL;
    std::string_view text;           // PARAM_STRING
    std::int64_t integer = 0;        // PARAM_INT; for PARAM_BOOL 0 or 1
    std::uint64_t unsigned_integer = 0;  // PARAM_UINT: a value above the int64 range
    double real = 0;                 // PARAM_FLOAT
};

// The parameters of the request, of an input or of an output, in InferHeader::parameters.
struct Parameters {
    std::size_t first = 0, count = 0;
};

enum SizeForm : int { SIZE_ABSENT, SIZE_NUMBER, SIZE_LIST };

struct InputHeader {
    std::string_view name;
    Datatype datatype = DT_INVALID;
    std::size_t shape_first = 0, rank = 0;        // in InferHeader::shapes
    std::uint64_t elements = 0, nbytes = 0;       // nbytes is 0 for BYTES, and elements for the shape [-1]
    bool has_data = false;
    std::size_t data_begin = 0, data_end = 0;     // of the brackets of `data`, as offsets
    SizeForm size_form = SIZE_ABSENT;
    std::uint64_t size = 0;                       // binary_data_size, or the sum of its list
    std::size_t sizes_first = 0, sizes_count = 0;  // in InferHeader::sizes
    Parameters parameters;                        // without binary_data_size
    bool shared = false;                          // the parameters name a shared memory region
    std::size_t offset = 0, length = 0;           // of the tensor's block in the body
};

struct OutputHeader {
    std::string_view name;
    Parameters parameters;
};

struct InferHeader {
    std::string_view id;
    std::size_t json_length = 0;  // without white space after the object
    Parameters request_parameters;
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
    bool open_texts = false;       // texts may have the shape [-1] (KServe's examples), and `data` may be a text (MLServer's)
};

// The faults. Python knows their sentences by these names, in lower case.
#define KSRV_HEADER_ERRORS(row) \
    row(EMPTY)  /* only white space */ \
    row(END)  /* the JSON is incomplete */ \
    row(SYNTAX) \
    row(DEPTH) \
    row(CONTROL) \
    row(ESCAPE) \
    row(UTF8) \
    row(TRAILING)  /* bytes after the object: received = number of bytes */ \
    row(TYPE)  /* `field` is not `wanted` */ \
    row(TWICE)  /* a known key or parameter occurs twice: name */ \
    row(MISSING)  /* `field` is missing */ \
    row(TOO_MANY)  /* more than `expected` of `field` */ \
    row(DATATYPE)  /* unknown datatype: name */ \
    row(DIMENSION)  /* expected = index; not an integer from 0 to 2^31 - 1 */ \
    row(NEGATIVE)  /* expected = index */ \
    row(OVERFLOW)  /* the product of the shape overflows */ \
    row(NUMBER)  /* a parameter's number is out of range */ \
    row(DUPLICATE_NAME)  /* two inputs or two outputs have this name */ \
    row(SIZE_INVALID)  /* binary_data_size is neither an unsigned integer nor a list */ \
    row(DATA_AND_SIZE)  /* both `data` and `binary_data_size` */ \
    row(DATA_AND_SHARED)  /* a shared memory region beside `data` or `binary_data_size` */ \
    row(SIZE_MISMATCH)  /* expected by the shape, received as binary_data_size */ \
    row(SIZE_LIST_COUNT)  /* expected elements, received sizes */ \
    row(SIZE_ZERO)  /* binary_data_size 0 for expected elements */ \
    row(BYTES_UNSIZED)  /* BYTES without a size, and not the sole element of a sole input */ \
    row(NO_DATA)  /* neither `data` nor bytes after the header: expected bytes */ \
    row(SHORT)  /* expected bytes, but received fewer */ \
    row(SURPLUS)  /* expected bytes after the header, but received more */

enum HeaderError : int {
    HEADER_OK = 0,
#define KSRV_ROW(name) HEADER_##name,
    KSRV_HEADER_ERRORS(KSRV_ROW)
#undef KSRV_ROW
    HEADER_MEMORY,  // out of memory
};

inline constexpr const char *HEADER_ERROR_NAMES[] = {
    "OK",
#define KSRV_ROW(name) #name,
    KSRV_HEADER_ERRORS(KSRV_ROW)
#undef KSRV_ROW
};

enum HeaderPlace : int { AT_REQUEST, AT_INPUT, AT_OUTPUT };

struct HeaderFault {
    HeaderError error = HEADER_OK;
    std::size_t offset = 0;
    HeaderPlace place = AT_REQUEST;
    std::size_t index = 0;        // of the input or output
    std::string_view owner;       // name of the input or output, if already known
    const char *field = "";
    const char *wanted = "";
    std::string_view name;        // the faulty name or word from the client
    std::uint64_t expected = 0, received = 0;
};

}  // namespace ksrv
