// The JPEGs of a batch, decoded and resized into its rows by a decode pool without the GIL.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "image/decode_pool.hpp"
#include "image/jpeg_decoder.hpp"
#include "resize/row_resize.hpp"

namespace ksrv {

// One of them. `ended` tells whether its request has ended; null for an image of no request.
struct BatchedJpeg {
    JpegJob jpeg{};
    ResizeKind kind{};
    ResizeWindow window{};
    PixelTarget target{};
    const Coefficients *coefficients = nullptr;
    const std::atomic<std::int32_t> *ended = nullptr;
    Decoded result = Decoded::elsewhere;
    bool passed_over = false;  // its request had ended
};

// Decodes them in order, in so many chunks; returns when all are done.
void decode_jpegs(DecodePool &pool, BatchedJpeg *jpegs, std::size_t count, std::size_t chunks) noexcept;

}  // namespace ksrv
