// The JPEGs of a batch, decoded and resized into its rows by a decode pool without the GIL.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "images/decode/memory.hpp"
#include "images/decode/pool.hpp"
#include "images/decode/jpeg_decoder.hpp"
#include "images/resize/row_resize.hpp"

namespace ksrv {

// One of them, of the size that it is seen in. `ended` tells whether its request has ended; null for an image of no request.
struct BatchedJpeg {
    JpegJob jpeg{};
    ResizeKind kind{};
    ResizeWindow window{};
    PixelTarget target{};
    const Coefficients *coefficients = nullptr;
    // The batch's row; all zero where the picture was not decoded, so that no byte of another is seen.
    unsigned char *row = nullptr;
    std::size_t row_bytes = 0;
    // One pixel of what lies around a letterbox; none where the picture fills its row.
    unsigned char border[32] = {};
    std::size_t border_bytes = 0;
    std::uint64_t decode_ns = 0;
    std::uint64_t decoder_bytes = 0;  // without what a turned picture takes
    int orientation = 1;  // EXIF's, which is applied
    const std::atomic<std::int32_t> *ended = nullptr;
    Decoded result = Decoded::elsewhere;
    bool passed_over = false;  // its request had ended
};

// Decodes them in order, on several threads when that pays, as many at once as there is memory for. Where there
// is none for the largest of them alone, all are left to `Decoded::elsewhere`, which says so.
void decode_jpegs(DecodePool &pool, DecodeMemory &memory, BatchedJpeg *jpegs, std::size_t count) noexcept;

}  // namespace ksrv
