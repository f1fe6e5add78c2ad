// Which image format a file begins like.

#pragma once

#include <cstddef>

namespace ksrv {

enum ImageFormat : int {
    IMAGE_UNKNOWN = 0,
    IMAGE_JPEG,
    IMAGE_PNG,
    IMAGE_WEBP,
    IMAGE_BMP,
    IMAGE_TIFF,
    IMAGE_GIF,
    IMAGE_JPEG2000,
    IMAGE_OPENEXR,
};

ImageFormat image_signature(const unsigned char *data, std::size_t length) noexcept;

// "jpeg" and so on; null for IMAGE_UNKNOWN.
const char *image_format_name(ImageFormat format) noexcept;

}  // namespace ksrv
