// The wire form of ModelInferRequest, read in one pass.
//
// Strategy: the scan copies nothing. It notes where names, shapes, parameters and tensor bytes lie in
// the received message and counts everything that repeats, so that no later step can be made to
// allocate more than the message justifies. It knows the ordinary form of the message, the one that
// every generated encoder emits, for certain. Whatever else the wire format allows (unknown fields
// and groups, unpacked scalars, a scalar or submessage given twice, varints with needless bytes) it
// does not interpret: it marks the message as unsure and goes on counting, and the caller has the
// protobuf class bring the message into the ordinary form first.
//
// A message is called malformed only where every protobuf reader refuses it. Nothing here recurses:
// the depth is that of the four nested message types.

#pragma once

#include <new>

#include "protobuf/wire_format.hpp"

namespace ksrv::message {

using protobuf::Cursor;
using protobuf::Span;

constexpr std::size_t MAX_RANK = 32;

enum Outcome : int {
    OK = 0,
    MALFORMED,   // not a protobuf message of this type
    INPUTS,      // more inputs, raw entries or requested outputs than allowed
    RANK,        // more dimensions in a shape than allowed
    PARAMETERS,  // more parameters than allowed
    TEXT,        // more bytes of names and strings than allowed
    MEMORY,      // the notes themselves could not be allocated
};

// Fields of InferTensorContents.
enum Contents : unsigned {
    BOOL_CONTENTS = 1,
    INT_CONTENTS = 2,
    INT64_CONTENTS = 3,
    UINT_CONTENTS = 4,
    UINT64_CONTENTS = 5,
    FP32_CONTENTS = 6,
    FP64_CONTENTS = 7,
    BYTES_CONTENTS = 8,
};

// Fields of InferParameter's oneof; 0 where none is set.
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
    std::uint64_t bits = 0;  // of the others, as on the wire
    unsigned choice = NO_CHOICE;
};

struct Input {
    Span name;
    Span datatype;
    Span contents;               // the whole submessage
    Span packed;                 // the packed values where one of fields 1 to 7 is set
    std::int64_t shape[MAX_RANK];
    std::size_t rank = 0;
    std::size_t first_parameter = 0;
    std::size_t parameters = 0;
    std::uint64_t elements = 0;  // values in the typed field that was seen last
    unsigned fields = 0;         // bit 1 << field for every typed field with a value
    bool has_contents = false;
};

struct Output {
    Span name;
    std::size_t first_parameter = 0;
    std::size_t parameters = 0;
};

struct Limits {
    std::size_t inputs = 256;
    std::size_t rank = MAX_RANK;
    std::size_t parameters = 1024;
    std::size_t text = std::size_t(64) << 20;
};

// A growing array of plain records whose first few need no allocation.
template <typename T, std::size_t Inline> class Notes {
    static_assert(std::is_trivially_copyable_v<T>, "records are moved by memcpy");

  public:
    Notes() noexcept : items_(inline_) {}
    ~Notes() {
        if (items_ != inline_) std::free(items_);
    }
    Notes(const Notes &) = delete;
    Notes &operator=(const Notes &) = delete;

    // A fresh record at the end, or null without memory. Earlier pointers become invalid.
    T *add() noexcept {
        if (size_ == capacity_) {
            const std::size_t capacity = capacity_ * 2;
            T *grown = static_cast<T *>(std::malloc(capacity * sizeof(T)));
            if (!grown) return nullptr;
            std::memcpy(static_cast<void *>(grown), items_, size_ * sizeof(T));
            if (items_ != inline_) std::free(items_);
            items_ = grown;
            capacity_ = capacity;
        }
        return new (&items_[size_++]) T();
    }
    const T &operator[](std::size_t i) const noexcept { return items_[i]; }
    std::size_t size() const noexcept { return size_; }

  private:
    T inline_[Inline];
    T *items_;
    std::size_t size_ = 0;
    std::size_t capacity_ = Inline;
};

struct Request {
    Span model_name;
    Span model_version;
    Span id;
    Notes<Parameter, 4> parameters;        // the request's own
    Notes<Parameter, 4> inner_parameters;  // those of inputs and outputs
    Notes<Input, 2> inputs;
    Notes<Output, 4> outputs;
    Notes<Span, 4> raw;
    std::size_t text = 0;     // bytes of all names and strings
    std::size_t failed_at = 0;  // where a MALFORMED message stops making sense
    std::uint64_t counted = 0;  // the number that passed a limit
    bool unsure = false;
};

class Scanner {
  public:
    Scanner(const unsigned char *base, std::size_t size, const Limits &limits,
            Request &request) noexcept
        : base_(base), size_(size), limits_(limits), request_(request) {}

    Outcome run() noexcept {
        Cursor c(base_, 0, size_);
        bool seen[4] = {};
        while (!c.done()) {
            std::uint64_t field;
            unsigned type;
            if (!c.tag(&field, &type, &request_.unsure)) return malformed(c);
            if (type != protobuf::BYTES || field == 0 || field > 7) {
                if (!unknown(c, field, type)) return malformed(c);
                continue;
            }
            Span part;
            if (!c.span(&part, &request_.unsure)) return malformed(c);
            Outcome outcome = OK;
            switch (field) {
            case 1:
                outcome = once(part, &request_.model_name, &seen[1]);
                break;
            case 2:
                outcome = once(part, &request_.model_version, &seen[2]);
                break;
            case 3:
                outcome = once(part, &request_.id, &seen[3]);
                break;
            case 4:
                outcome = parameter(part, request_.parameters);
                break;
            case 5:
                outcome = input(part);
                break;
            case 6:
                outcome = output(part);
                break;
            default:
                if (request_.raw.size() == limits_.inputs) return limit(INPUTS, limits_.inputs + 1);
                if (Span *raw = request_.raw.add())
                    *raw = part;
                else
                    outcome = MEMORY;
            }
            if (outcome != OK) return outcome;
        }
        return OK;
    }

  private:
    Outcome malformed(const Cursor &c) noexcept {
        request_.failed_at = c.at();
        return MALFORMED;
    }

    Outcome limit(Outcome which, std::uint64_t counted) noexcept {
        request_.counted = counted;
        return which;
    }

    bool unknown(Cursor &c, std::uint64_t field, unsigned type) noexcept {
        request_.unsure = true;
        return c.skip(field, type);
    }

    Outcome text(const Span &part) noexcept {
        request_.text += part.length;
        if (request_.text > limits_.text) return limit(TEXT, request_.text);
        if (protobuf::is_utf8(base_ + part.offset, part.length)) return OK;
        request_.failed_at = part.offset;
        return MALFORMED;
    }

    Outcome once(const Span &part, Span *into, bool *seen) noexcept {
        if (*seen) request_.unsure = true;
        *seen = true;
        *into = part;
        return text(part);
    }

    template <typename Pool> Outcome parameter(const Span &entry, Pool &pool) noexcept {
        if (request_.parameters.size() + request_.inner_parameters.size() >= limits_.parameters)
            return limit(PARAMETERS, limits_.parameters + 1);
        Parameter *made = pool.add();
        if (!made) return MEMORY;
        Cursor c(base_, entry.offset, entry.offset + entry.length);
        bool has_key = false, has_value = false;
        while (!c.done()) {
            std::uint64_t field;
            unsigned type;
            if (!c.tag(&field, &type, &request_.unsure)) return malformed(c);
            if (type != protobuf::BYTES || (field != 1 && field != 2)) {
                if (!unknown(c, field, type)) return malformed(c);
                continue;
            }
            Span part;
            if (!c.span(&part, &request_.unsure)) return malformed(c);
            const Outcome outcome =
                field == 1 ? once(part, &made->key, &has_key) : value(part, made, &has_value);
            if (outcome != OK) return outcome;
        }
        return OK;
    }

    Outcome value(const Span &part, Parameter *made, bool *seen) noexcept {
        if (*seen) request_.unsure = true;
        *seen = true;
        Cursor c(base_, part.offset, part.offset + part.length);
        while (!c.done()) {
            std::uint64_t field;
            unsigned type;
            if (!c.tag(&field, &type, &request_.unsure)) return malformed(c);
            const unsigned expected = field == STRING_PARAM   ? protobuf::BYTES
                                      : field == DOUBLE_PARAM ? protobuf::FIXED64
                                                              : protobuf::VARINT;
            if (field == 0 || field > UINT64_PARAM || type != expected) {
                if (!unknown(c, field, type)) return malformed(c);
                continue;
            }
            if (made->choice != NO_CHOICE) request_.unsure = true;
            made->choice = static_cast<unsigned>(field);
            if (type == protobuf::BYTES) {
                if (!c.span(&made->text, &request_.unsure)) return malformed(c);
                const Outcome outcome = text(made->text);
                if (outcome != OK) return outcome;
            } else if (type == protobuf::FIXED64) {
                const unsigned char *at = c.here();
                if (!c.advance(8)) return malformed(c);
                std::memcpy(&made->bits, at, 8);
            } else {
                unsigned length;
                if (!c.varint(&made->bits, &length)) return malformed(c);
            }
        }
        return OK;
    }

    Outcome input(const Span &entry) noexcept {
        if (request_.inputs.size() == limits_.inputs) return limit(INPUTS, limits_.inputs + 1);
        Input *made = request_.inputs.add();
        if (!made) return MEMORY;
        made->first_parameter = request_.inner_parameters.size();
        Cursor c(base_, entry.offset, entry.offset + entry.length);
        bool has_name = false, has_datatype = false, has_shape = false;
        while (!c.done()) {
            std::uint64_t field;
            unsigned type;
            if (!c.tag(&field, &type, &request_.unsure)) return malformed(c);
            if (field == 3 && type == protobuf::VARINT) {  // unpacked: counted, not read
                request_.unsure = true;
                if (!c.skip(field, type)) return malformed(c);
                if (++made->rank > limits_.rank) return limit(RANK, made->rank);
                continue;
            }
            if (type != protobuf::BYTES || field == 0 || field > 5) {
                if (!unknown(c, field, type)) return malformed(c);
                continue;
            }
            Span part;
            if (!c.span(&part, &request_.unsure)) return malformed(c);
            Outcome outcome = OK;
            switch (field) {
            case 1:
                outcome = once(part, &made->name, &has_name);
                break;
            case 2:
                outcome = once(part, &made->datatype, &has_datatype);
                break;
            case 3:
                if (has_shape) request_.unsure = true;
                has_shape = true;
                outcome = shape(part, made);
                break;
            case 4:
                outcome = parameter(part, request_.inner_parameters);
                ++made->parameters;
                break;
            default:
                if (made->has_contents) request_.unsure = true;
                made->has_contents = true;
                outcome = contents(part, made);
            }
            if (outcome != OK) return outcome;
        }
        return OK;
    }

    Outcome shape(const Span &part, Input *made) noexcept {
        Cursor c(base_, part.offset, part.offset + part.length);
        while (!c.done()) {
            std::uint64_t dimension;
            unsigned length;
            if (!c.varint(&dimension, &length)) return malformed(c);
            if (made->rank >= limits_.rank) {
                std::uint64_t rest = 0;
                if (!protobuf::count_varints(c.here(), part.offset + part.length - c.at(), &rest,
                                   &request_.unsure))
                    return malformed(c);
                return limit(RANK, made->rank + 1 + rest);
            }
            made->shape[made->rank++] = static_cast<std::int64_t>(dimension);
        }
        return OK;
    }

    Outcome contents(const Span &part, Input *made) noexcept {
        made->contents = part;
        Cursor c(base_, part.offset, part.offset + part.length);
        while (!c.done()) {
            std::uint64_t field;
            unsigned type;
            if (!c.tag(&field, &type, &request_.unsure)) return malformed(c);
            if (type != protobuf::BYTES || field == 0 || field > BYTES_CONTENTS) {
                if (!unknown(c, field, type)) return malformed(c);
                continue;
            }
            Span values;
            if (!c.span(&values, &request_.unsure)) return malformed(c);
            const unsigned bit = 1u << field;
            if (field == BYTES_CONTENTS) {
                made->elements = made->fields & bit ? made->elements + 1 : 1;
                made->fields |= bit;
                continue;
            }
            if (values.length == 0) continue;  // a packed field without values is not set
            if (made->fields & bit) request_.unsure = true;
            made->fields |= bit;
            made->packed = values;
            if (field == FP32_CONTENTS || field == FP64_CONTENTS) {
                const std::size_t width = field == FP32_CONTENTS ? 4 : 8;
                if (values.length % width) return malformed(c);
                made->elements = values.length / width;
            } else if (!protobuf::count_varints(base_ + values.offset, values.length, &made->elements,
                                      &request_.unsure)) {
                return malformed(c);
            }
        }
        return OK;
    }

    Outcome output(const Span &entry) noexcept {
        if (request_.outputs.size() == limits_.inputs) return limit(INPUTS, limits_.inputs + 1);
        Output *made = request_.outputs.add();
        if (!made) return MEMORY;
        made->first_parameter = request_.inner_parameters.size();
        Cursor c(base_, entry.offset, entry.offset + entry.length);
        bool has_name = false;
        while (!c.done()) {
            std::uint64_t field;
            unsigned type;
            if (!c.tag(&field, &type, &request_.unsure)) return malformed(c);
            if (type != protobuf::BYTES || (field != 1 && field != 2)) {
                if (!unknown(c, field, type)) return malformed(c);
                continue;
            }
            Span part;
            if (!c.span(&part, &request_.unsure)) return malformed(c);
            Outcome outcome;
            if (field == 1) {
                outcome = once(part, &made->name, &has_name);
            } else {
                outcome = parameter(part, request_.inner_parameters);
                ++made->parameters;
            }
            if (outcome != OK) return outcome;
        }
        return OK;
    }

    const unsigned char *base_;
    std::size_t size_;
    const Limits &limits_;
    Request &request_;
};

inline Outcome scan(const unsigned char *message, std::size_t size, const Limits &limits,
                    Request &request) noexcept {
    return Scanner(message, size, limits, request).run();
}

// The next element of bytes_contents at or after `*at`, within a contents span that was scanned.
inline bool next_element(const unsigned char *base, std::size_t *at, std::size_t end,
                         Span *element) noexcept {
    Cursor c(base, *at, end);
    while (!c.done()) {
        std::uint64_t field;
        unsigned type;
        bool odd = false;
        if (!c.tag(&field, &type, &odd)) return false;
        if (field == BYTES_CONTENTS && type == protobuf::BYTES) {
            if (!c.span(element, &odd)) return false;
            *at = c.at();
            return true;
        }
        if (!c.skip(field, type)) return false;
    }
    return false;
}

}  // namespace ksrv::message
