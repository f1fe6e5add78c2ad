// Writes the pieces of an infer response, JSON and header lines, without Python.
//
// The text equals the text of Python's renderer (ksrv/protocol/) byte for byte. The caller calls the functions in
// order: `begin_reply`, for each output `begin_output` and one of the `end_..._output` functions, then `end_reply`. The
// header lines begin with `begin_fields` or `begin_json_fields`, and end with `end_fields`.

#pragma once

#include "base/text_writer.hpp"
#include "json/number_writer.hpp"

namespace ksrv {

// 4 KiB is enough for nearly every answer. Longer answers are left to Python's renderer.
using ReplyText = TextRoom<4096>;

// Begins an answer with the model. False if a text needs escapes.
inline bool begin_model(TextWriter &out, const char *model, std::size_t model_length, const char *version,
                        std::size_t version_length) noexcept {
    out.put("{\"model_name\":");
    if (!out.quoted(model, model_length)) return false;
    if (!version_length) return true;
    out.put(",\"model_version\":");
    return out.quoted(version, version_length);
}

// Writes everything before the outputs. False if a text needs escapes.
inline bool begin_reply(TextWriter &out, const char *model, std::size_t model_length,
                        const char *version, std::size_t version_length, const char *id,
                        std::size_t id_length) noexcept {
    if (!begin_model(out, model, model_length, version, version_length)) return false;
    if (id_length) {
        out.put(",\"id\":");
        if (!out.quoted(id, id_length)) return false;
    }
    out.put(",\"outputs\":[");
    return true;
}

// Writes the beginning of an output: name, datatype and shape. `Size` is any integer type of dimensions. If `rows` is
// not negative, it replaces the first dimension.
template <class Size>
bool begin_output(TextWriter &out, bool first, const char *name, std::size_t name_length,
                  const char *datatype, std::size_t datatype_length, const Size *shape, int rank,
                  std::int64_t rows) noexcept {
    if (!first) out.put(",");
    out.put("{\"name\":");
    if (!out.quoted(name, name_length)) return false;
    out.put(",\"datatype\":\"");
    out.put(datatype, datatype_length);
    out.put("\",\"shape\":[");
    for (int i = 0; i < rank; ++i) {
        if (i) out.put(",");
        out.number(i == 0 && rows >= 0 ? rows : static_cast<std::int64_t>(shape[i]));
    }
    out.put("]");
    return true;
}

// Writes the rest of an output whose bytes follow the JSON.
inline void end_binary_output(TextWriter &out, std::int64_t nbytes) noexcept {
    out.put(",\"parameters\":{\"binary_data_size\":");
    out.number(nbytes);
    out.put("}}");
}

// Writes the rest of an output as JSON numbers.
inline void end_json_output(TextWriter &out, Datatype datatype, const unsigned char *data,
                            std::uint64_t count) noexcept {
    out.put(",\"data\":");
    put_numbers(out, datatype, data, count);
    out.put("}");
}

inline void end_reply(TextWriter &out) noexcept { out.put("]}"); }

inline void begin_json_fields(TextWriter &fields) noexcept { fields.put("content-type: application/json\r\n"); }

// Begins the header fields of an answer with bytes after the JSON.
inline void begin_fields(TextWriter &fields, std::size_t json_length) noexcept {
    fields.put("content-type: application/octet-stream\r\ninference-header-content-length: ");
    fields.number(static_cast<std::int64_t>(json_length));
    fields.put("\r\n");
}

// Adds a stage to the Server-Timing field.
inline void put_stage(TextWriter &fields, bool first, const char *stage, std::size_t length,
                      std::uint64_t nanoseconds) noexcept {
    if (first) {
        fields.put("server-timing: ");
    } else {
        fields.put(", ");
    }
    fields.put(stage, length);
    fields.put(";dur=");
    fields.milliseconds(nanoseconds);
}

// `timed`: the Server-Timing field is open, and must be ended first.
inline void end_fields(TextWriter &fields, bool timed, std::uint64_t content_length) noexcept {
    if (timed) fields.put("\r\n");
    fields.put("content-length: ");
    fields.number(static_cast<std::int64_t>(content_length));
    fields.put("\r\n");
}

}  // namespace ksrv
