// What decoding a picture takes, as its header tells: time on one thread, and memory.

#pragma once

#include <cstdint>

#include "images/image_header.hpp"

namespace ksrv {

// From here on a request's pictures are decoded apart from those of other requests: about fifty million pixels.
inline constexpr std::uint64_t DECODED_APART_NS = 200000000;

// About how many nanoseconds. The first number is what a decoder needs at the least; each scan of a JPEG is a
// pass over its pixels.
inline std::uint64_t decode_ns(const ImageHeader &header) noexcept {
    const std::uint64_t pixels = std::uint64_t{header.width} * header.height;
    return 15000 + 4 * pixels + header.scans * pixels / 2;
}

// Whether the first scan of a JPEG holds all of its pixels.
inline bool has_one_scan(const ImageHeader &header) noexcept {
    return header.pixel_bytes == 2 * header.channels;
}

// The bytes that a JPEG's decoder holds at its peak where no whole picture is kept: some rows, with those of the
// resize; and what all scans add to, where there are several.
inline std::uint64_t row_decoder_bytes(const ImageHeader &header) noexcept {
    constexpr std::uint64_t base = 1u << 17, column = 256, coefficient = 2;
    std::uint64_t nbytes = base + column * header.width;
    if (!has_one_scan(header))
        nbytes += std::uint64_t{header.width} * header.height * coefficient *
                  static_cast<std::uint64_t>(header.components);
    return nbytes;
}

}  // namespace ksrv
