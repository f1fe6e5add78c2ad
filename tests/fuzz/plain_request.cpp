// libFuzzer harness of native/infer/plain_request.hpp: requests in plain JSON, and their values in an answer.
//
// The first byte chooses the form of the body and the signature. An accepted body must be valid JSON; its inputs must be
// aligned and within the memory after it. Written as outputs, they must be valid JSON too, and no longer than an answer
// may be.

#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "infer/plain_request.hpp"
#include "json/number_writer.hpp"
#include "json/scanner.hpp"
#include "fast_request.hpp"
#include "require.hpp"

namespace {

bool is_json(const char *text, std::size_t length) {
    ksrv::json::Cursor cursor{text, text + length};
    ksrv::json::skip_space(cursor);
    if (cursor.at == cursor.end || ksrv::json::skip_value(cursor, 0, 64) != ksrv::json::OK) return false;
    ksrv::json::skip_space(cursor);
    return cursor.at == cursor.end;
}

// Writes an input as an answer has it.
void answer(const ksrv::InputSignature &declared, const ksrv::FastRequestLayout &layout, const unsigned char *data) {
    std::vector<std::ptrdiff_t> shape{layout.rows};
    std::size_t values = layout.rows;
    for (std::int64_t size : declared.tail) {
        shape.push_back(size == -1 ? static_cast<std::ptrdiff_t>(layout.row_length) : size);
        values *= static_cast<std::size_t>(shape.back());
    }
    const int rank = static_cast<int>(shape.size());
    std::vector<char> room(values * (ksrv::json_value_bytes(declared.datatype) + 2 * shape.size()));
    ksrv::TextWriter out(room.data(), room.size());
    ksrv::put_nested(out, declared.datatype, data, shape.data(), rank);
    require(!out.full() && is_json(out.text(), out.length()));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size) {
    if (size < 1) return 0;
    const std::size_t length = size - 1;
    ksrv::PlainForm form;
    if (data[0] & 1) form.rows = "instances", form.answer = "predictions";
    ksrv::ModelSignature signature;
    signature.model = "m";
    signature.inputs.push_back(input("x", ksrv::DT_FP32, {2, 2}));
    if (data[0] & 2) signature.inputs[0] = input("x", ksrv::DT_INT64, {});
    if (data[0] & 4) signature.inputs.push_back(input("y", ksrv::DT_BOOL, {1}));
    if (data[0] & 8) {
        // Rows of one length, which is padded: x has it, and y is its mask.
        signature.inputs[0] = input("x", ksrv::DT_UINT8, {2});
        signature.inputs[0].tail = {-1, 2};
        signature.inputs[0].padded = true;
        if (signature.inputs.size() > 1) {
            signature.inputs[1].tail = {-1};
            signature.inputs[1].padded = signature.inputs[1].made = true;
        }
        signature.lengths = std::make_unique<ksrv::LengthBuckets>(8, 0.25, INT32_MAX);
    }
    signature.max_rows = data[0] & 16 ? 3 : 0;
    signature.json_limit = 4096;
    auto *body = static_cast<unsigned char *>(::operator new(length + 1, std::align_val_t(64)));
    std::memcpy(body, data + 1, length);
    ksrv::FastRequestLayout layout;
    if (ksrv::read_plain_request(form, signature, body, length, &layout)) {
        require(layout.rows >= 1 && (signature.max_rows == 0 || layout.rows <= signature.max_rows));
        require(layout.length <= 9 * length + 256);
        auto *longer = static_cast<unsigned char *>(::operator new(layout.length, std::align_val_t(64)));
        std::memcpy(longer, body, length);
        std::memset(longer + length, 0xA5, layout.length - length);
        if (ksrv::copy_inputs(signature, layout, longer)) {
            require(is_json(reinterpret_cast<const char *>(body), length));
            std::size_t end = length;
            for (std::size_t i = 0; i < signature.inputs.size(); ++i) {
                const ksrv::InputSignature &declared = signature.inputs[i];
                require(layout.given[i] || declared.made);
                if (!layout.given[i]) continue;
                const std::size_t item = ksrv::item_size_of(declared.datatype), offset = layout.offsets[i];
                const std::size_t bytes = declared.bytes_of_row(layout.row_length) * layout.rows;
                require(offset >= end && offset % item == 0 && offset + bytes <= layout.length);
                if (declared.datatype == ksrv::DT_BOOL)
                    for (std::size_t at = offset; at < offset + bytes; ++at) require(longer[at] <= 1);
                answer(declared, layout, longer + offset);
                end = offset + bytes;
            }
            require(end == layout.length && std::memcmp(longer, body, length) == 0);
        }
        ::operator delete(longer, std::align_val_t(64));
    }
    ::operator delete(body, std::align_val_t(64));
    return 0;
}
