// Pillow's antialiased bilinear resize of 8-bit pictures, bit for bit.
//
// Strategy: the filter is a triangle as wide as the reduction, its weights are fixed-point integers
// of 22 fractional bits, and each pass rounds to 8 bits: these define the result, everything else is
// free. A vertical pass multiplies whole rows by one weight, which vectorises by itself. For the
// horizontal pass sixteen rows are transposed, so that it becomes the same loop over sixteen rows at
// once, and transposed back. Only the part of the result that is asked for is computed.
//
// Pictures with alpha are multiplied by it before and divided by it after, as Pillow does.

#pragma once

#include <cstddef>
#include <cstdint>

namespace ksrv {

// What to compute: the window [top, top + out_height) x [left, left + out_width) of the resize of a
// height x width picture to full_height x full_width.
struct Resample {
    std::size_t height, width, channels;
    std::size_t full_height, full_width;
    std::size_t top, left, out_height, out_width;
    bool alpha;  // four channels of which the last is opacity
};

// Resizes with `scratch` of the bytes that a call without scratch returns.
std::size_t resample_pillow(const Resample &job, const std::uint8_t *source,
                            std::ptrdiff_t source_bytes, std::uint8_t *target,
                            std::ptrdiff_t target_bytes, unsigned char *scratch) noexcept;

}  // namespace ksrv
