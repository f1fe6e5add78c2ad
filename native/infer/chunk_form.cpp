#include "infer/chunk_form.hpp"

#include "base/text_writer.hpp"
#include "base/utf8.hpp"
#include "json/number_writer.hpp"

namespace ksrv {

namespace {

// The keys of the fields ModelStreamInferResponse.infer_response and ModelInferResponse.raw_output_contents.
constexpr char INFER_RESPONSE = 2 << 3 | 2;
constexpr char RAW_OUTPUT_CONTENTS = 6 << 3 | 2;

// Appends a JSON string with orjson's escapes.
void put_string(std::string *out, const unsigned char *text, std::size_t length) {
    constexpr char DIGITS[] = "0123456789abcdef";
    std::size_t from = 0;
    const auto put_plain = [&](std::size_t end) { out->append(reinterpret_cast<const char *>(text) + from, end - from); };
    out->push_back('"');
    for (std::size_t i = 0; i < length; ++i) {
        const unsigned char c = text[i];
        if (c >= ' ' && c != '"' && c != '\\') continue;
        put_plain(i);
        from = i + 1;
        out->push_back('\\');
        if (c >= ' ') {
            out->push_back(static_cast<char>(c));
        } else if (c >= '\b' && c <= '\r' && c != '\v') {
            out->push_back("btnvfr"[c - '\b']);
        } else {
            out->append("u00").append({DIGITS[c >> 4], DIGITS[c & 15]});
        }
    }
    put_plain(length);
    out->push_back('"');
}

// The key of a protobuf field of bytes, and its length as a varint.
std::string field_prefix(char key, std::uint64_t length) {
    std::string prefix(1, key);
    for (; length > 0x7F; length >>= 7) prefix.push_back(static_cast<char>(length | 0x80));
    prefix.push_back(static_cast<char>(length));
    return prefix;
}

}  // namespace

bool ChunkForm::fits(const unsigned char *data, std::size_t length) const noexcept {
    if (datatype != DT_BYTES) return length == count * item_size_of(datatype);
    return kind == ChunkKind::grpc_message || is_utf8(data, length);
}

void ChunkForm::put(std::string *out, const unsigned char *data, std::size_t length) const {
    if (kind == ChunkKind::grpc_message) return put_message(out, data, length);
    std::string value;
    if (datatype == DT_BYTES) {
        put_string(&value, data, length);
    } else {
        value.resize(count * json_value_bytes(datatype) + 2);
        TextWriter writer(value.data(), value.size());
        put_numbers(writer, datatype, data, count);
        value.resize(writer.length());
        // A lone number, without the brackets of `put_numbers`.
        if (kind == ChunkKind::json_value) value = value.substr(1, value.size() - 2);
    }
    out->append(pieces[0]);
    for (std::size_t i = 1; i < pieces.size(); ++i) out->append(value).append(pieces[i]);
}

void ChunkForm::put_message(std::string *out, const unsigned char *data, std::size_t length) const {
    const std::size_t element_prefix = datatype == DT_BYTES ? 4 : 0;
    const std::string contents = field_prefix(RAW_OUTPUT_CONTENTS, element_prefix + length);
    const std::size_t rest = pieces[0].size() + contents.size() + element_prefix + length;
    const std::string response = field_prefix(INFER_RESPONSE, rest);
    const std::size_t message = response.size() + rest;
    out->push_back(0);  // not compressed
    for (int shift = 24; shift >= 0; shift -= 8) out->push_back(static_cast<char>(message >> shift));
    out->append(response).append(pieces[0]).append(contents);
    for (std::size_t i = 0; i < element_prefix; ++i) out->push_back(static_cast<char>(length >> 8 * i));
    out->append(reinterpret_cast<const char *>(data), length);
}

}  // namespace ksrv
