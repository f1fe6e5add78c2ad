#include "protobuf/infer_request.hpp"

#include "base/utf8.hpp"

namespace ksrv::message {

namespace {

// A method for each message type. The .proto file defines the field numbers; the comments name the fields. `unsure` is
// set for a message in an unusual form, which the caller re-encodes (infer_request.hpp).
class Scanner {
  public:
    Scanner(const unsigned char *base, std::size_t size, const Limits &limits,
            Request &request) noexcept
        : base_(base), size_(size), limits_(limits), request_(request) {}

    Outcome run() noexcept {
        Span *const texts[] = {&request_.model_name, &request_.model_version, &request_.id};
        bool seen[3] = {};
        const Span message{0, size_};
        return parts(message, 7, [&](const Cursor &, std::uint64_t field, const Span &part) {
            if (field <= 3) return once(part, texts[field - 1], &seen[field - 1]);
            switch (field) {
            case 4:  // parameters
                return parameter(part, request_.parameters);
            case 5:  // inputs
                return input(part);
            case 6:  // outputs
                return output(part);
            default:  // raw_input_contents
                break;
            }
            if (request_.raw.size() == limits_.inputs) return limit(INPUTS, limits_.inputs + 1);
            Span *raw = request_.raw.add();
            if (!raw) return MEMORY;
            *raw = part;
            return OK;
        });
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

    // Skips a field that is unknown or has an unusual form.
    bool unknown(Cursor &c, std::uint64_t field, unsigned type) noexcept {
        request_.unsure = true;
        return c.skip(field, type);
    }

    // Calls `take` for each field of `within` with a number up to `last`. All of these fields are length-delimited.
    // `unpacked`: of an input, whose shape may be in unpacked form: its dimensions are counted here, but not read.
    template <typename Take>
    Outcome parts(const Span &within, std::uint64_t last, Take &&take, std::size_t *unpacked = nullptr) noexcept {
        Cursor c(base_, within.offset, within.offset + within.length);
        while (!c.done()) {
            std::uint64_t field;
            unsigned type;
            if (!c.tag(&field, &type, &request_.unsure)) return malformed(c);
            if (type != protobuf::BYTES || field == 0 || field > last) {
                if (!unknown(c, field, type)) return malformed(c);
                const bool is_dimension = unpacked && field == 3 && type == protobuf::VARINT;
                if (is_dimension && ++*unpacked > limits_.rank) return limit(RANK, *unpacked);
                continue;
            }
            Span part;
            if (!c.span(&part, &request_.unsure)) return malformed(c);
            const Outcome outcome = take(c, field, part);
            if (outcome != OK) return outcome;
        }
        return OK;
    }

    // Counts and checks a name or string.
    Outcome text(const Span &part) noexcept {
        request_.text += part.length;
        if (request_.text > limits_.text) return limit(TEXT, request_.text);
        if (is_utf8(base_ + part.offset, part.length)) return OK;
        request_.failed_at = part.offset;
        return MALFORMED;
    }

    // Takes a text that usually occurs once. If it occurs again, the message is unsure.
    Outcome once(const Span &part, Span *into, bool *seen) noexcept {
        if (*seen) request_.unsure = true;
        *seen = true;
        *into = part;
        return text(part);
    }

    // An entry of a map of parameters: key (1) and InferParameter (2).
    template <typename Pool> Outcome parameter(const Span &entry, Pool &pool) noexcept {
        if (request_.parameters.size() + request_.inner_parameters.size() >= limits_.parameters)
            return limit(PARAMETERS, limits_.parameters + 1);
        Parameter *made = pool.add();
        if (!made) return MEMORY;
        bool has_key = false, has_value = false;
        return parts(entry, 2, [&](const Cursor &, std::uint64_t field, const Span &part) {
            return field == 1 ? once(part, &made->key, &has_key) : value(part, made, &has_value);
        });
    }

    // An InferParameter.
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
        bool has_name = false, has_datatype = false, has_shape = false;
        const auto take = [&](const Cursor &, std::uint64_t field, const Span &part) {
            switch (field) {
            case 1:
                return once(part, &made->name, &has_name);
            case 2:
                made->type = datatype_of(reinterpret_cast<const char *>(base_) + part.offset, part.length);
                return once(part, &made->datatype, &has_datatype);
            case 3:  // shape
                if (has_shape) request_.unsure = true;
                has_shape = true;
                return shape(part, made);
            case 4:
                ++made->parameters;
                return parameter(part, request_.inner_parameters);
            default:  // contents
                if (made->has_contents) request_.unsure = true;
                made->has_contents = true;
                return contents(part, made);
            }
        };
        return parts(entry, 5, take, &made->rank);
    }

    Outcome shape(const Span &part, Input *made) noexcept {
        Cursor c(base_, part.offset, part.offset + part.length);
        while (!c.done()) {
            std::uint64_t dimension;
            unsigned length;
            if (!c.varint(&dimension, &length)) return malformed(c);
            if (made->rank >= limits_.rank) {  // count the rest, for the error message
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
        const auto take = [&](const Cursor &c, std::uint64_t field, const Span &values) {
            const unsigned bit = 1u << field;
            if (field == BYTES_CONTENTS) {
                made->elements = made->fields & bit ? made->elements + 1 : 1;
                made->fields |= bit;
                return OK;
            }
            if (values.length == 0) return OK;  // a packed field without values counts as absent
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
            return OK;
        };
        return parts(part, BYTES_CONTENTS, take);
    }

    Outcome output(const Span &entry) noexcept {
        if (request_.outputs.size() == limits_.inputs) return limit(INPUTS, limits_.inputs + 1);
        Output *made = request_.outputs.add();
        if (!made) return MEMORY;
        made->first_parameter = request_.inner_parameters.size();
        bool has_name = false;
        return parts(entry, 2, [&](const Cursor &, std::uint64_t field, const Span &part) {
            if (field == 1) return once(part, &made->name, &has_name);
            ++made->parameters;
            return parameter(part, request_.inner_parameters);
        });
    }

    const unsigned char *base_;
    std::size_t size_;
    const Limits &limits_;
    Request &request_;
};

}  // namespace

Outcome scan(const unsigned char *message, std::size_t size, const Limits &limits, Request &request) noexcept {
    return Scanner(message, size, limits, request).run();
}

bool next_element(const unsigned char *base, std::size_t *at, std::size_t end, Span *element) noexcept {
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

std::size_t decode_contents(Datatype datatype, const unsigned char *p, std::size_t count, void *out,
                            std::int64_t *value) noexcept {
    std::size_t done = 0;
    with_number(datatype, [&](auto zero) {
        using Item = decltype(zero);
        if constexpr (std::is_integral_v<Item>) {
            // The type of the field: InferTensorContents has 32-bit fields for all integers of fewer than 64 bits.
            using Narrow = std::conditional_t<std::is_signed_v<Item>, std::int32_t, std::uint32_t>;
            using Whole = std::conditional_t<sizeof(Item) == 8, Item, Narrow>;
            using Wire = std::conditional_t<std::is_same_v<Item, bool>, bool, Whole>;
            done = protobuf::decode_varints<Wire>(p, count, static_cast<Item *>(out), value);
        }
    });
    return done;
}

}  // namespace ksrv::message
