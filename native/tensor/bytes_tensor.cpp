#include "tensor/bytes_tensor.hpp"

#include <cstring>

namespace ksrv {

namespace {

bool starts(const unsigned char *data, std::size_t length, const char *magic,
            std::size_t magic_length) noexcept {
    return length >= magic_length && std::memcmp(data, magic, magic_length) == 0;
}

}  // namespace

bool walk_prefixed(const unsigned char *data, std::size_t length, std::uint64_t count,
                   ElementFault *fault) noexcept {
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

const char *image_signature(const unsigned char *data, std::size_t length) noexcept {
    struct Signature {
        const char *magic;
        std::size_t length;
        const char *name;
    };
    static constexpr Signature SIGNATURES[] = {
        {"\xff\xd8\xff", 3, "jpeg"},        {"\x89PNG\r\n\x1a\n", 8, "png"},
        {"GIF8", 4, "gif"},                 {"II*\0", 4, "tiff"},
        {"MM\0*", 4, "tiff"},               {"\0\0\0\x0cjP", 6, "jpeg2000"},
        {"\x76\x2f\x31\x01", 4, "openexr"}, {"BM", 2, "bmp"},
    };
    for (const Signature &s : SIGNATURES)
        if (starts(data, length, s.magic, s.length)) return s.name;
    if (length >= 12 && starts(data, length, "RIFF", 4) &&
        std::memcmp(data + 8, "WEBP", 4) == 0)
        return "webp";
    return nullptr;
}

BytesForm bytes_form(const unsigned char *data, std::size_t length, std::uint64_t count,
                     bool is_image, ElementFault *fault) noexcept {
    const bool walked = walk_prefixed(data, length, count, fault);
    if (!is_image || count != 1) return walked ? BYTES_PREFIXED : BYTES_INVALID;
    if (walked && (image_signature(data + PREFIX_BYTES, length - PREFIX_BYTES) != nullptr ||
                   image_signature(data, length) == nullptr))
        return BYTES_PREFIXED;
    return BYTES_BARE;
}

}  // namespace ksrv
