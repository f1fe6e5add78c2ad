#include "tensor/bytes_tensor.hpp"

#include "tensor/image_signature.hpp"

namespace ksrv {

bool walk_prefixed(const unsigned char *data, std::size_t length, std::uint64_t count, ElementFault *fault) noexcept {
    std::size_t offset = 0;
    for (std::uint64_t i = 0; i < count; ++i) {
        const std::size_t left = length - offset;
        if (left < PREFIX_BYTES) {
            *fault = {i, offset, 0, left, true, false};
            return false;
        }
        const std::uint32_t claimed = element_length(data + offset);
        if (claimed > left - PREFIX_BYTES) {
            *fault = {i, offset, claimed, left - PREFIX_BYTES, false, false};
            return false;
        }
        offset += PREFIX_BYTES + claimed;
    }
    if (offset != length) {
        *fault = {count, offset, 0, length - offset, false, true};
        return false;
    }
    return true;
}

BytesForm bytes_form(const unsigned char *data, std::size_t length, std::uint64_t count,
                     bool is_image, ElementFault *fault) noexcept {
    const bool walked = walk_prefixed(data, length, count, fault);
    if (!is_image || count != 1) return walked ? BYTES_PREFIXED : BYTES_INVALID;
    if (walked && (image_signature(data + PREFIX_BYTES, length - PREFIX_BYTES) != IMAGE_UNKNOWN ||
                   image_signature(data, length) == IMAGE_UNKNOWN))
        return BYTES_PREFIXED;
    return BYTES_BARE;  // also bytes of no known format: the error of the decoder says more than `fault`
}

}  // namespace ksrv
