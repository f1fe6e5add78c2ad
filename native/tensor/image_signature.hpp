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
    // Not decoded; errors name them. The decoders of the last three follow the coded picture and not the header: a
    // file that says 16x16 makes cv2 and Pillow decode 36 megapixels, and neither can be given a limit.
    IMAGE_JPEG2000,
    IMAGE_OPENEXR,
    IMAGE_AVIF,
    IMAGE_HEIC,
    IMAGE_HEIF,
};

ImageFormat image_signature(const unsigned char *data, std::size_t length) noexcept;

// "jpeg" and so on; null for IMAGE_UNKNOWN.
const char *image_format_name(ImageFormat format) noexcept;

}  // namespace ksrv
