// Reads the wire form of ModelInferRequest (protos/) in one pass.
//
// Strategy: the scan copies nothing. It records the offsets of names, shapes, parameters and tensor bytes in the
// received message, and counts everything that repeats, so that no later step can be made to allocate more than the
// message's size justifies. It reads only the usual form of the message, which every generated encoder emits. If a
// message uses other forms that the wire format allows (unknown fields and groups, unpacked scalars, a scalar or
// submessage that occurs twice, varints with needless bytes), the scan marks it as unsure and continues to count. The
// caller then re-encodes the message with the protobuf class.
//
// A message is malformed only if every protobuf reader refuses it. Nothing here recurses: the depth is that of the four
// nested message types.

#pragma once

#include "base/small_vector.hpp"
#include "protobuf/wire_format.hpp"
#include "tensor/datatype.hpp"

namespace ksrv::message {

using protobuf::Cursor;
using protobuf::Span;

enum Outcome : int {
    OK = 0,
    MALFORMED,   // not a protobuf message of this type
    INPUTS,      // more inputs, raw entries or requested outputs than allowed
    RANK,        // more dimensions in a shape than allowed
    PARAMETERS,  // more parameters than allowed
    TEXT,        // more bytes of names and strings than allowed
    MEMORY,      // not enough memory for the result
};

// The fields of InferTensorContents whose values are not varints, by their numbers.
enum Contents : unsigned {
    FP32_CONTENTS = 6,
    FP64_CONTENTS = 7,
    BYTES_CONTENTS = 8,
};

// Fields of InferParameter's oneof; 0 if none of them is set.
enum Choice : unsigned {
    NO_CHOICE = 0,
    BOOL_PARAM = 1,
    INT64_PARAM = 2,
    STRING_PARAM = 3,
    DOUBLE_PARAM = 4,
    UINT64_PARAM = 5,
};

struct Parameter {
    Span key;
    Span text;               // of a STRING_PARAM
    std::uint64_t bits = 0;  // of other types, as on the wire
    unsigned choice = NO_CHOICE;
};

using Parameters = SmallVector<Parameter, 4>;

struct Input {
    Span name;
    Span datatype;
    Span contents;               // the whole submessage
    Span packed;                 // the packed values, if one of fields 1 to 7 is set
    Datatype type = DT_INVALID;  // the value of `datatype`
    std::int64_t shape[MAX_RANK];
    std::size_t rank = 0;
    std::size_t first_parameter = 0;  // index in Request::inner_parameters
    std::size_t parameters = 0;       // their number
    std::uint64_t elements = 0;  // values in the typed field that occurred last
    unsigned fields = 0;         // bit 1 << field for every typed field with a value
    bool has_contents = false;
};

struct Output {
    Span name;
    std::size_t first_parameter = 0;  // index in Request::inner_parameters
    std::size_t parameters = 0;       // their number
};

struct Limits {
    std::size_t inputs = 256;
    std::size_t rank = MAX_RANK;
    std::size_t parameters = 1024;
    std::size_t text = std::size_t(64) << 20;
};

struct Request {
    Span model_name;
    Span model_version;
    Span id;
    Parameters parameters;        // of the request
    Parameters inner_parameters;  // of inputs and outputs
    SmallVector<Input, 2> inputs;
    SmallVector<Output, 4> outputs;
    SmallVector<Span, 4> raw;   // raw_input_contents
    std::size_t text = 0;       // bytes of all names and strings
    std::size_t failed_at = 0;  // offset of the fault in a MALFORMED message
    std::uint64_t counted = 0;  // the number that exceeded a limit
    bool unsure = false;        // the message has an unusual form: the caller must re-encode it
};

// Reads the message into `request`. On another outcome than OK, `request` has the fault's position or count.
Outcome scan(const unsigned char *message, std::size_t size, const Limits &limits, Request &request) noexcept;

// The next element of bytes_contents at or after `*at`, within an already scanned contents span.
bool next_element(const unsigned char *base, std::size_t *at, std::size_t end, Span *element) noexcept;

// Decodes the packed varints of a typed field, which `scan` has counted, into numbers of a datatype. Returns `count`,
// or the index of the first value that exceeds the datatype, which is stored in `*value`.
std::size_t decode_contents(Datatype datatype, const unsigned char *p, std::size_t count, void *out,
                            std::int64_t *value) noexcept;

}  // namespace ksrv::message
