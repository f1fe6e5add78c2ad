// Pillow's antialiased bilinear resize of 8-bit pictures, bit for bit.
//
// Strategy: the filter is a triangle as wide as the reduction, weights are fixed-point integers with 22 fractional
// bits, and each pass rounds to 8 bits. This determines the result. A vertical pass multiplies whole rows by a weight,
// which the compiler vectorises. For the horizontal pass sixteen rows are transposed, so that it becomes the same loop
// over sixteen rows at once, and transposed back. Only the requested part of the result is computed.
//
// As in Pillow, pictures with alpha are multiplied by alpha before the resize and divided by it after.

#pragma once

#include <cstddef>
#include <cstdint>

#include "images/resize/window.hpp"

namespace ksrv {

// Whether Pillow resizes a picture in height first. The order matters, because it rounds between the passes.
bool pillow_goes_down_first(const ResizeWindow &job) noexcept;

// Resizes with `scratch`, whose size a call without scratch returns. The last of four channels is opacity.
std::size_t resample_pillow(const ResizeWindow &job, const std::uint8_t *source,
                            std::ptrdiff_t source_bytes, std::uint8_t *target,
                            std::ptrdiff_t target_bytes, unsigned char *scratch) noexcept;

}  // namespace ksrv
