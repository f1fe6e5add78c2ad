// libFuzzer harness of native/infer/fast_request.hpp: which requests need no Python before their handler.
//
// The first two bytes choose how much of the body is header, and the signature. An accepted tensor must be
// within the body, or as numbers in the memory after it, aligned and of exactly the size of its rows. An accepted
// request must name existing outputs, and the reader of every route must accept it as well. Images use
// up the bytes of their input, one after the other.

#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "infer/fast_request.hpp"
#include "infer/infer_header_reader.hpp"
#include "fast_request.hpp"
#include "require.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size) {
    if (size < 2) return 0;
    const std::size_t length = size - 2;
    const std::size_t tail = data[0];
    const std::size_t json_length = length - (tail < length ? tail : 0);
    ksrv::ModelSignature signature;
    signature.inputs.push_back(input("x", ksrv::DT_FP32, {4}));
    if (data[1] & 16) signature.inputs[0] = input("x", ksrv::DT_BOOL, {2, 1});
    if (data[1] & 1) signature.inputs.push_back(input("y", ksrv::DT_INT64, {}));
    if (data[1] & 128) {
        // Rows of one length, which is padded: x has it, and y is its mask.
        signature.inputs[0] = input("x", ksrv::DT_FP32, {2});
        signature.inputs[0].tail = {-1, 2};
        signature.inputs[0].padded = true;
        if (signature.inputs.size() > 1) {
            signature.inputs[1].tail = {-1};
            signature.inputs[1].padded = signature.inputs[1].made = true;
        }
        signature.lengths = std::make_unique<ksrv::LengthBuckets>(8, 0.25, INT32_MAX);
    }
    if (data[1] & 2) signature.outputs = {"a", "b"};
    signature.max_rows = data[1] & 4 ? 3 : 0;
    if (data[1] & 32) {
        ksrv::ImageRules &rules = signature.inputs[0].images;
        rules.accepted = true;
        rules.strict = (data[1] & 64) != 0;
        rules.image_pixels = 1u << 20;
        rules.request_pixels = 1u << 21;
        rules.scans = rules.scans_per_component = 4;
    }
    signature.json_limit = 4096;
    // The JSON ends on a border of 64 bytes, as the HTTP server receives it, unless bit 3 says otherwise.
    const std::size_t lead = data[1] & 8 ? 1 : (0 - json_length) & 63;
    auto *room = static_cast<unsigned char *>(
        ::operator new(lead + length + 1, std::align_val_t(64)));
    unsigned char *body = room + lead;
    std::memcpy(body, data + 2, length);
    ksrv::FastRequestLayout layout;
    if (ksrv::read_fast_request(signature, body, length, json_length, &layout)) {
        ksrv::InferHeader header;
        ksrv::HeaderFault fault;
        const char *text = reinterpret_cast<const char *>(body);
        require(ksrv::read_infer_header(text, json_length, length, signature.limits, &header, &fault) ==
                ksrv::HEADER_OK);
        require(layout.rows >= 1 && (signature.max_rows == 0 || layout.rows <= signature.max_rows));
        std::size_t sent = json_length, end = length;
        for (std::size_t i = 0; i < header.inputs.size(); ++i) {
            const std::size_t place = header.inputs[i].name == signature.inputs[0].name ? 0 : 1;
            const ksrv::InputSignature &declared = signature.inputs[place];
            const std::size_t bytes = declared.bytes_of_row(layout.row_length) * layout.rows, offset = layout.offsets[place];
            if (layout.images[place]) {
                require(header.inputs[i].datatype == ksrv::DT_BYTES && declared.images.accepted);
                for (std::size_t row = 0; row < layout.rows; ++row) {
                    const ksrv::EncodedImage &one = layout.images[place][row];
                    require(one.offset >= sent && one.offset <= sent + 4 && one.length <= length - one.offset);
                    require(std::uint64_t{one.width} * one.height <= declared.images.image_pixels);
                    sent = one.offset + one.length;
                }
                continue;
            }
            const ksrv::CopiedValues &copied = layout.copied[place];
            require(copied.numbers == header.inputs[i].has_data);
            require(reinterpret_cast<std::uintptr_t>(body + offset) % ksrv::item_size_of(declared.datatype) == 0);
            if (!copied.numbers) {
                require((copied.end ? copied.begin : offset) == sent && bytes <= length - sent);
                require(copied.end == 0 || copied.end == sent + bytes);
                sent += bytes;
            }
            if (copied.end) {
                require(offset >= end && offset + bytes <= layout.length && layout.length <= 16 * length + 256);
                end = offset + bytes;
            }
        }
        require(sent == length && end == layout.length);
        require(layout.id_offset + layout.id_length <= json_length);
        require(layout.wanted_count <= ksrv::FAST_OUTPUTS);
        for (int i = 0; i < layout.wanted_count; ++i) require(layout.wanted[i] < signature.outputs.size());
        auto *longer = static_cast<unsigned char *>(
            ::operator new(lead + layout.length, std::align_val_t(64)));
        std::memcpy(longer + lead, body, length);
        ksrv::copy_inputs(signature, layout, longer + lead);
        require(std::memcmp(longer + lead, body, length) == 0);
        for (std::size_t place = 0; place < signature.inputs.size(); ++place) {
            const ksrv::InputSignature &declared = signature.inputs[place];
            const std::uint64_t rows_length =
                signature.lengths ? signature.lengths->padded(layout.row_length) : 0;
            if (layout.images[place] || rows_length > (1u << 20)) continue;
            require(layout.given[place] || declared.made);
            // Exactly the memory that a batch of the request alone has for the input.
            std::vector<unsigned char> rows(layout.rows * declared.bytes_of_row(rows_length));
            ksrv::copy_rows(declared, ksrv::source_of(layout, longer + lead, place), rows_length, rows.data());
        }
        ::operator delete(longer, std::align_val_t(64));
    }
    ::operator delete(room, std::align_val_t(64));
    return 0;
}
