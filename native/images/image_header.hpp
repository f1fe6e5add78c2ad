// The header of a picture, read before it is decoded: format, size, channels, depth, orientation, and the
// cost of decoding it.
//
// Strategy: this runs before any decoder and allocates nothing, so that a file which claims more
// pixels than allowed costs a walk over its segments and no pixel memory. The decoder has the last
// word: this reader follows a file exactly as the decoder does, so that both see the same size, and
// judges only what it needs itself. A file without dimensions is an error, because the limits on
// pixels must hold before the file is decoded. Every read is checked against the bytes present, and
// the walk takes time in proportion to them: over every chunk of a PNG, whose decoder allocates what
// a chunk announces, and over the scans of a JPEG, each of which costs a pass over all pixels.
//
// The channels are as cv2.imdecode gives them with IMREAD_UNCHANGED, or 0 where the header alone
// does not tell (BMP, GIF, TIFF, WebP).

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
    chunk,  // a chunk announces more bytes than there are
    texts,  // more compressed texts than a picture has
};

struct ImageHeader {
    int format = IMAGE_UNKNOWN;
    std::uint32_t width = 0, height = 0;
    int channels = 0;
    int bit_depth = 0;    // bits of a decoded sample: 8 or 16
    int orientation = 0;  // 1 to 8: how the decoded picture is still to be turned, by EXIF
    int stored_bits = 8;  // of a sample in a JPEG or TIFF
    int coding = 0;       // of a JPEG: the marker of its frame; of a TIFF: its Compression
    bool separate = false;    // a TIFF that stores each channel apart
    int components = 0;       // of a JPEG
    std::uint32_t scans = 0;  // of a JPEG: how many passes over its pixels it asks for
    int pixel_bytes = 0;      // what the decoder holds for one pixel at its peak
    // With ImageFault::chunk: where the chunk lies, what it announces, and what is left of the file.
    std::size_t chunk = 0, announced = 0, left = 0;
};

// Compressed texts of a PNG: the decoder inflates each one, to 8 MB at most. Real files have a few.
inline constexpr int COMPRESSED_TEXTS = 64;

// Reads the header. `header->format` is set even when the rest cannot be read.
ImageFault read_image_header(const unsigned char *data, std::size_t size,
                              ImageHeader *header) noexcept;

}  // namespace ksrv
