#include "infer/tensor_blocks.hpp"

namespace ksrv {

HeaderError split_blocks(InferHeader *header, std::size_t json_length, std::size_t body_length,
                         HeaderFault *fault) noexcept {
    std::size_t offset = json_length;
    const auto fail = [&](HeaderError error, std::uint64_t expected, std::uint64_t received) {
        fault->error = error;
        fault->offset = offset;
        fault->expected = expected;
        fault->received = received;
        return error;
    };
    for (std::size_t i = 0; i < header->inputs.size(); ++i) {
        InputHeader &input = header->inputs[i];
        if (input.has_data || input.shared.given) continue;
        fault->place = AT_INPUT;
        fault->index = i;
        fault->owner = input.name;
        const std::size_t left = body_length - offset;
        const bool bytes = input.datatype == DT_BYTES;
        std::uint64_t length = input.size;
        if (input.size_form == SIZE_ABSENT) {
            if (!bytes) {
                length = input.nbytes;
            } else if (input.elements == 0) {
                length = 0;
            } else if (header->inputs.size() == 1 && input.elements == 1) {
                length = left;
            } else {
                return fail(left ? HEADER_BYTES_UNSIZED : HEADER_NO_DATA, 0, left);
            }
            if (left == 0 && input.elements != 0) return fail(HEADER_NO_DATA, length, 0);
        } else if (!bytes && length != input.nbytes) {
            return fail(HEADER_SIZE_MISMATCH, input.nbytes, length);
        } else if (bytes && input.size_form == SIZE_LIST && input.sizes_count != input.elements) {
            return fail(HEADER_SIZE_LIST_COUNT, input.elements, input.sizes_count);
        } else if (bytes && input.size_form == SIZE_NUMBER && length == 0 && input.elements != 0) {
            return fail(HEADER_SIZE_ZERO, input.elements, 0);
        }
        if (length > left) return fail(HEADER_SHORT, length, left);
        input.offset = offset;
        input.length = static_cast<std::size_t>(length);
        offset += input.length;
    }
    fault->place = AT_REQUEST;
    if (offset != body_length)
        return fail(HEADER_SURPLUS, offset - json_length, body_length - json_length);
    return HEADER_OK;
}

std::size_t find_not_bool(const unsigned char *data, std::size_t length) noexcept {
    unsigned char all = 0;
    for (std::size_t i = 0; i < length; ++i) all |= data[i];
    if (all <= 1) return length;
    std::size_t i = 0;
    while (data[i] <= 1) ++i;
    return i;
}

}  // namespace ksrv
