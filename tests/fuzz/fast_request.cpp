// libFuzzer harness of native/v2/fast_request.hpp: which requests need no Python before their handler.
//
// The first two bytes choose how much of the body is header, and the signature. What is accepted must lie
// within the body, aligned and of just the size that its rows have, must ask for outputs that there are,
// and must be a request that the reader of every route accepts as well.

#include <cstdlib>
#include <cstring>
#include <new>

#include "v2/fast_request.hpp"
#include "v2/infer_header_reader.hpp"

namespace {

void require(bool condition) {
    if (!condition) std::abort();
}

ksrv::InputSignature input(const char *name, ksrv::Datatype datatype, std::vector<std::int64_t> tail) {
    ksrv::InputSignature made;
    made.name = name;
    made.datatype = datatype;
    made.row_bytes = ksrv::item_size_of(datatype);
    for (std::int64_t size : tail) made.row_bytes *= static_cast<std::uint64_t>(size);
    made.tail = std::move(tail);
    return made;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size) {
    if (size < 2) return 0;
    const std::size_t length = size - 2;
    const std::size_t tail = data[0];
    const std::size_t json_length = length - (tail < length ? tail : 0);
    ksrv::ModelSignature signature;
    signature.inputs.push_back(input("x", ksrv::DT_FP32, {4}));
    if (data[1] & 1) signature.inputs.push_back(input("y", ksrv::DT_INT64, {}));
    if (data[1] & 2) signature.outputs = {"a", "b"};
    signature.max_rows = data[1] & 4 ? 3 : 0;
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
        require(ksrv::scan_infer_header(text, json_length, signature.limits, &header, &fault) ==
                ksrv::HEADER_OK);
        require(layout.rows >= 1 && (signature.max_rows == 0 || layout.rows <= signature.max_rows));
        std::size_t end = json_length;
        for (std::size_t i = 0; i < signature.inputs.size(); ++i) {
            const std::size_t bytes = signature.inputs[i].row_bytes * layout.rows;
            require(layout.offsets[i] == end && bytes <= length - end);
            require(reinterpret_cast<std::uintptr_t>(body + end) %
                        ksrv::item_size_of(signature.inputs[i].datatype) ==
                    0);
            end += bytes;
        }
        require(end == length && layout.id_offset + layout.id_length <= json_length);
        require(layout.wanted_count <= ksrv::FAST_OUTPUTS);
        for (int i = 0; i < layout.wanted_count; ++i) require(layout.wanted[i] < signature.outputs.size());
    }
    ::operator delete(room, std::align_val_t(64));
    return 0;
}
