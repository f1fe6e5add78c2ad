#include "tensor/image_signature.hpp"

#include <cstring>

namespace ksrv {

ImageFormat image_signature(const unsigned char *data, std::size_t length) noexcept {
    struct Signature {
        const char *magic;
        std::size_t length;
        ImageFormat format;
        std::size_t at = 0;
    };
    static constexpr Signature SIGNATURES[] = {
        {"\xff\xd8\xff", 3, IMAGE_JPEG},
        {"\x89PNG\r\n\x1a\n", 8, IMAGE_PNG},
        {"GIF87a", 6, IMAGE_GIF},
        {"GIF89a", 6, IMAGE_GIF},
        {"II*\0", 4, IMAGE_TIFF},
        {"MM\0*", 4, IMAGE_TIFF},
        {"II+\0", 4, IMAGE_TIFF},
        {"MM\0+", 4, IMAGE_TIFF},
        {"\0\0\0\x0cjP", 6, IMAGE_JPEG2000},
        {"\xff\x4f\xff\x51", 4, IMAGE_JPEG2000},
        {"\x76\x2f\x31\x01", 4, IMAGE_OPENEXR},
        {"ftypavif", 8, IMAGE_AVIF, 4},
        {"ftypavis", 8, IMAGE_AVIF, 4},
        {"ftyphei", 7, IMAGE_HEIC, 4},
        {"ftyphev", 7, IMAGE_HEIC, 4},
        {"ftypmif", 7, IMAGE_HEIF, 4},
        {"ftypmsf", 7, IMAGE_HEIF, 4},
        {"BM", 2, IMAGE_BMP},
    };
    const auto is = [=](std::size_t at, const char *magic, std::size_t size) {
        return length >= at + size && std::memcmp(data + at, magic, size) == 0;
    };
    for (const Signature &s : SIGNATURES)
        if (is(s.at, s.magic, s.length)) return s.format;
    return is(0, "RIFF", 4) && is(8, "WEBP", 4) ? IMAGE_WEBP : IMAGE_UNKNOWN;
}

const char *image_format_name(ImageFormat format) noexcept {
    static constexpr const char *NAMES[] = {nullptr, "jpeg",     "png",     "webp", "bmp",  "tiff",
                                            "gif",   "jpeg2000", "openexr", "avif", "heic", "heif"};
    return NAMES[format];
}

}  // namespace ksrv
