// Reads a picture's header before it is decoded: format, size, channels, depth, orientation, and the cost of decoding.
//
// Strategy: this runs before any decoder and allocates nothing, so that a file that claims more pixels than allowed
// costs a walk over its segments and no memory for pixels. The decoder has the last word: this reader follows a file
// exactly as the decoder does, so that both see the same size, and checks only what it needs itself. A file without
// dimensions is an error, because the pixel limits must be checked before decoding. Every read is checked against the
// available bytes. The walk takes time in proportion to the file: it visits all chunks of a PNG, because its decoder
// allocates what a chunk announces, and all scans of a JPEG, because each is a pass over all pixels.
//
// Channels are as cv2.imdecode returns with IMREAD_UNCHANGED, or 0 if the header does not determine them (BMP, GIF,
// TIFF, WebP).

#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/image_signature.hpp"

namespace ksrv {

enum class ImageFault : int {
    none,
    unknown_format,
    truncated,
    damaged,
    chunk,  // a chunk announces more bytes than are left
    texts,  // more compressed texts than real pictures have
};

struct ImageHeader {
    int format = IMAGE_UNKNOWN;
    std::uint32_t width = 0, height = 0;
    int channels = 0;
    int bit_depth = 0;    // of a decoded sample: 8 or 16
    int orientation = 0;  // EXIF orientation, 1 to 8, that must still be applied to the decoded picture
    int stored_bits = 8;  // per sample in a JPEG or TIFF
    int coding = 0;       // frame marker of a JPEG, or Compression tag of a TIFF
    bool separate = false;    // a TIFF that stores each channel in a separate plane
    int components = 0;       // JPEG only
    std::uint32_t scans = 0;  // JPEG only: the number of passes over all pixels
    int pixel_bytes = 0;      // bytes per pixel that the decoder needs at its peak
    // With ImageFault::chunk: the chunk's offset, the bytes that it announces, and the bytes left in the file.
    std::size_t chunk = 0, announced = 0, left = 0;
};

// Limit for compressed texts of a PNG. The decoder inflates each text to up to 8 MB. Real files have a few.
inline constexpr int MOST_COMPRESSED_TEXTS = 64;

// Reads the header. Sets `header->format` even if the rest is unreadable.
ImageFault read_image_header(const unsigned char *data, std::size_t size, ImageHeader *header) noexcept;

}  // namespace ksrv
