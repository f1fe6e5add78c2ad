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

#include "images/resize/window.hpp"

namespace ksrv {

// Whether Pillow resizes a picture in height first; the rounding between the passes makes it visible.
bool pillow_goes_down_first(const ResizeWindow &job) noexcept;

// Resizes with `scratch` of the bytes that a call without scratch returns. `has_alpha`: the last of four
// channels is opacity.
std::size_t resample_pillow(const ResizeWindow &job, bool has_alpha, const std::uint8_t *source,
                            std::ptrdiff_t source_bytes, std::uint8_t *target,
                            std::ptrdiff_t target_bytes, unsigned char *scratch) noexcept;

}  // namespace ksrv
