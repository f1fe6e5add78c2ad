// Recognises image formats by the first bytes of a file.

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
    // Not decoded, but named in errors. Decoders of AVIF, HEIC and HEIF follow the coded picture and not the header:
    // for a file whose header says 16x16, cv2 and Pillow may decode 36 megapixels, and neither has a limit.
    IMAGE_JPEG2000,
    IMAGE_OPENEXR,
    IMAGE_AVIF,
    IMAGE_HEIC,
    IMAGE_HEIF,
};

ImageFormat image_signature(const unsigned char *data, std::size_t length) noexcept;

// "jpeg" and so on. Null for IMAGE_UNKNOWN.
const char *image_format_name(ImageFormat format) noexcept;

}  // namespace ksrv
