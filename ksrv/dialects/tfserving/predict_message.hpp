// PredictRequest and PredictResponse, read and written without the protobuf library.
//
// Strategy: the scan copies nothing. It notes a PredictRequest as if it were a ModelInferRequest
// (protobuf/infer_request.hpp), so that the fast path and Python read both alike:
//
// - the parameter "" is the version or its label, if the client names one,
// - `packed` of an input are its values: tensor_content, or the packed values of a typed field.
//
// A message is unsure, and must be re-encoded, if it has unknown fields, a field twice, or typed values that are not
// packed. Nothing recurses: the depth is that of the nested messages.

#pragma once

#include <cstdlib>
#include <cstring>
#include <string_view>

#include "base/utf8.hpp"
#include "grpc/fast_call.hpp"

namespace ksrv::tfserving {

using message::Input;
using message::Outcome;
using protobuf::Span;
using protobuf::Writer;

enum Field : unsigned { CONTENT = 4, FLOATS = 5, DOUBLES = 6, STRINGS = 8, LAST_VALUES = 17 };  // of TensorProto

// For each datatype its value in TensorFlow's DataType, and its typed field in TensorProto.
struct Kind { int number; unsigned field; };
inline constexpr Kind KINDS[DT_COUNT] = {{10, 11}, {4, 7},   {17, 7},  {22, 16}, {23, 17},     {6, 7},       {5, 7},
                                         {3, 7},   {9, 10},  {19, 13}, {14, 13}, {1, FLOATS}, {2, DOUBLES}, {7, STRINGS}};

// Whether the values of the typed field are the bytes of the array.
inline bool is_raw(Datatype type) noexcept { return type == DT_FP32 || type == DT_FP64 || type == DT_BOOL; }

constexpr uint64_t bytes(unsigned field) noexcept { return field << 3 | protobuf::BYTES; }
constexpr uint64_t varint(unsigned field) noexcept { return field << 3 | protobuf::VARINT; }

class Scanner {
  public:
    Scanner(const unsigned char *base, const message::Limits &limits, message::Request &found) noexcept
        : base_(base), limits_(limits), found_(found) {}

    Outcome request(const Span &message) noexcept {
        return fields(message, 1u << 2 | 1u << 3, [&](uint64_t tag, const Span &part, uint64_t) {
            if (tag == bytes(1)) return model_spec(part);
            if (tag == bytes(2)) return input(part);
            if (tag != bytes(3)) return unknown();
            if (found_.outputs.size() == limits_.inputs) return message::INPUTS;
            message::Output *made = found_.outputs.add();
            return made ? text(part, &made->name) : message::MEMORY;
        });
    }

  private:
    Outcome unknown() noexcept {
        found_.unsure = true;
        return message::OK;
    }

    // Calls `take` with the tag of each field, and its bytes or its varint. `repeated`: the fields that may repeat.
    template <class Take> Outcome fields(const Span &within, unsigned repeated, Take take) noexcept {
        protobuf::Cursor c(base_, within.offset, within.offset + within.length);
        unsigned seen = 0;
        while (!c.done()) {
            uint64_t field, value = 0;
            unsigned type, length;
            bool odd = false;  // longer varints than necessary are accepted
            Span part;
            found_.failed_at = c.at();
            if (!c.tag(&field, &type, &odd)) return message::MALFORMED;
            const bool read = type == protobuf::BYTES    ? c.span(&part, &odd)
                              : type == protobuf::VARINT ? c.varint(&value, &length)
                                                         : c.skip(field, type);
            if (!read) return message::MALFORMED;
            const unsigned bit = field < 32 ? 1u << field : 0;
            if (seen & bit & ~repeated) found_.unsure = true;
            seen |= bit;
            const Outcome outcome = take(field << 3 | type, part, value);
            if (outcome != message::OK) return outcome;
        }
        return message::OK;
    }

    // Takes, counts and checks a name.
    Outcome text(const Span &part, Span *into) noexcept {
        *into = part;
        found_.counted = found_.text += part.length;
        if (found_.text > limits_.text) return message::TEXT;
        return is_utf8(base_ + part.offset, part.length) ? message::OK : message::MALFORMED;
    }

    Outcome model_spec(const Span &spec) noexcept {
        return fields(spec, 0, [&](uint64_t tag, const Span &part, uint64_t) {
            if (tag == bytes(1)) return text(part, &found_.model_name);
            if (tag == bytes(3)) return message::OK;  // the name of a signature: a model has only one
            if (tag != bytes(2) && tag != bytes(4)) return unknown();
            if (!found_.parameters.empty()) return unknown();  // the later choice counts
            message::Parameter *choice = found_.parameters.add();
            if (!choice) return message::MEMORY;
            choice->choice = tag == bytes(2) ? message::INT64_PARAM : message::STRING_PARAM;
            if (tag == bytes(4)) return text(part, &choice->text);
            return fields(part, 0, [&](uint64_t inner, const Span &, uint64_t version) {
                choice->bits = version;
                return inner == varint(1) ? message::OK : unknown();
            });
        });
    }

    Outcome input(const Span &entry) noexcept {
        if (found_.inputs.size() == limits_.inputs) return message::INPUTS;
        Input *made = found_.inputs.add();
        if (!made) return message::MEMORY;
        return fields(entry, 0, [&](uint64_t tag, const Span &part, uint64_t) {
            if (tag == bytes(1)) {
                for (size_t i = 0; i + 1 < found_.inputs.size(); ++i) {  // a later entry replaces an earlier entry
                    const Span &other = found_.inputs[i].name;
                    if (other.length == part.length && !memcmp(base_ + other.offset, base_ + part.offset, part.length))
                        found_.unsure = true;
                }
                return text(part, &made->name);
            }
            if (tag != bytes(2)) return unknown();
            made->contents = part;
            return tensor(part, made);
        });
    }

    Outcome tensor(const Span &tensor, Input *made) noexcept {
        return fields(tensor, 1u << STRINGS, [&](uint64_t tag, const Span &part, uint64_t value) {
            if (tag == bytes(2)) return shape(part, made);
            if (tag == varint(1)) {
                made->type = DT_INVALID;
                for (int i = 0; i < DT_COUNT; ++i)
                    if (static_cast<uint64_t>(KINDS[i].number) == value) made->type = static_cast<Datatype>(i);
                return message::OK;
            }
            const unsigned field = static_cast<unsigned>(tag >> 3), width = field == DOUBLES ? 8 : 4;
            if (tag != bytes(field) || field < CONTENT || field > LAST_VALUES) return unknown();
            if (field != STRINGS && !part.length) return message::OK;  // counts as absent
            made->fields |= 1u << field;
            if (field == STRINGS) return ++made->elements, message::OK;
            made->packed = part;
            made->elements = part.length / width;
            if (field == CONTENT) return message::OK;
            const bool whole = field <= DOUBLES ? part.length % width == 0
                                                : protobuf::count_varints(base_ + part.offset, part.length,
                                                                          &made->elements, &found_.unsure);
            return whole ? message::OK : message::MALFORMED;
        });
    }

    Outcome shape(const Span &shape, Input *made) noexcept {
        return fields(shape, 1u << 2, [&](uint64_t tag, const Span &part, uint64_t) {
            if (tag == varint(3)) return message::OK;  // unknown_rank: only metadata uses it
            if (tag != bytes(2)) return unknown();
            found_.counted = made->rank + 1;
            if (made->rank >= limits_.rank) return message::RANK;
            int64_t *size = &made->shape[made->rank++];
            *size = 0;  // left out on the wire
            return fields(part, 0, [&](uint64_t inner, const Span &, uint64_t value) {
                if (inner == varint(1)) *size = static_cast<int64_t>(value);
                return inner == varint(1) || inner == bytes(2) ? message::OK : unknown();
            });
        });
    }

    const unsigned char *base_;
    const message::Limits &limits_;
    message::Request &found_;
};

inline Outcome scan_request(const unsigned char *message, size_t size, const message::Limits &limits,
                            message::Request &found) noexcept {
    return Scanner(message, limits, found).request(Span{0, size});
}

// Reads a request whose tensors have the bytes of arrays. PARAMETERS leaves it to Python.
inline Outcome scan_fast(const unsigned char *message, size_t size, const message::Limits &limits,
                         message::Request &found) noexcept {
    const Outcome outcome = scan_request(message, size, limits, found);
    if (outcome != message::OK) return outcome;
    for (size_t i = 0; i < found.inputs.size(); ++i) {
        Input &input = found.inputs[i];
        input.has_contents = input.type == DT_BYTES && input.fields == 1u << STRINGS;
        if (input.has_contents) continue;
        const bool raw = is_raw(input.type) && input.fields == 1u << KINDS[input.type].field;
        if (!raw && input.fields != 1u << CONTENT) return message::PARAMETERS;
        Span *added = found.raw.add();
        if (!added) return message::MEMORY;
        *added = input.packed;
    }
    return message::OK;
}

// ---- writing ----

// Writes integers, or the bits of 16-bit floats, as the varints of a typed field.
inline void put_varints(Writer &out, Datatype type, const unsigned char *data, size_t length) noexcept {
    const size_t width = item_size_of(type);
    const unsigned shift = type >= DT_INT8 && type <= DT_INT64 ? static_cast<unsigned>(64 - 8 * width) : 0;
    for (size_t at = 0; at < length; at += width) {
        uint64_t value = 0;
        memcpy(&value, data + at, width);
        out.varint(static_cast<uint64_t>(static_cast<int64_t>(value << shift) >> shift));
    }
}

// Writes an entry of `outputs` up to its values, which have `length` bytes. Each BYTES value has a tag besides.
inline void put_head(Writer &out, std::string_view name, Datatype type, const int64_t *shape, size_t rank,
                     size_t length) noexcept {
    Writer sizes, tensor, entry;
    for (size_t i = 0; i < rank; ++i) {
        Writer size;
        size.tag(1, protobuf::VARINT);
        size.varint(static_cast<uint64_t>(shape[i]));
        sizes.bytes(2, size.data(), size.size());
    }
    tensor.tag(1, protobuf::VARINT);
    tensor.varint(static_cast<uint64_t>(KINDS[type].number));
    tensor.bytes(2, sizes.data(), sizes.size());
    if (type != DT_BYTES) {
        tensor.tag(KINDS[type].field, protobuf::BYTES);
        tensor.varint(length);
    }
    entry.bytes(1, name.data(), name.size());
    entry.tag(2, protobuf::BYTES);
    entry.varint(tensor.size() + length);
    entry.raw(tensor.data(), tensor.size());
    out.tag(1, protobuf::BYTES);
    out.varint(entry.size() + length);
    out.raw(entry.data(), entry.size());
}

// Writes `model_spec`. The version is a number: 1 for "1.0", and for a model without versions.
inline void put_spec(Writer &out, std::string_view name, const char *version) noexcept {
    Writer spec, value;
    value.tag(1, protobuf::VARINT);
    value.varint(*version ? strtoull(version, nullptr, 10) : 1);
    spec.bytes(1, name.data(), name.size());
    spec.bytes(2, value.data(), value.size());
    spec.bytes(3, "serving_default", 15);
    out.bytes(2, spec.data(), spec.size());
}

inline bool write(Writer &out, FastRequest &request, const ReplyPart *parts, int part_count, int64_t row,
                  bool alone) noexcept {
    const FastRequestLayout &layout = request.layout;
    const int count = layout.wanted_count ? layout.wanted_count : part_count;
    for (int i = 0; i < count; ++i) {
        const ReplyPart &part = parts[layout.handler_output(i)];
        const unsigned char *data = part.data + row * part.row_bytes;
        size_t length = static_cast<size_t>(request.rows * part.row_bytes);
        int64_t shape[64];  // the most of an array
        for (int k = 0; k < part.rank; ++k) shape[k] = k == 0 && !alone ? request.rows : part.shape[k];
        Writer values;
        if (!is_raw(part.type)) {
            put_varints(values, part.type, data, length);
            if (values.failed()) return false;
            data = values.data();
            length = values.size();
        }
        const std::string_view name(part.name, part.name_length);
        put_head(out, name, part.type, shape, static_cast<size_t>(part.rank), length);
        out.raw(data, length);
    }
    put_spec(out, request.signature->model, request.signature->version.c_str());
    return !out.failed();
}

// `inputs`, its value, and a field whose values have the bytes of an array.
inline constexpr grpc::MessageForm PREDICT = {
    scan_fast, {1u << 2, 1u << 2, 1u << CONTENT | 1u << FLOATS | 1u << DOUBLES}, write};

}  // namespace ksrv::tfserving
