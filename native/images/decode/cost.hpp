// Estimates, from a picture's header, the time (on one thread) and memory that decoding takes.

#pragma once

#include <cstdint>

#include "images/image_header.hpp"

namespace ksrv {

// From this decode time on (about fifty million pixels), the pictures of a request are decoded on a separate thread.
inline constexpr std::uint64_t SLOW_DECODE_NS = 200'000'000;

// About how many nanoseconds decoding takes: 15 us for the start of a decoder, 4 ns for each pixel, and for a JPEG 0.5
// ns for each pixel and scan.
inline std::uint64_t decode_ns(const ImageHeader &header) noexcept {
    const std::uint64_t pixels = std::uint64_t{header.width} * header.height;
    return 15000 + 4 * pixels + header.scans * pixels / 2;
}

// Whether a JPEG is decoded from a single scan. `read_image_header` then sets 2 bytes per channel, for the decoded
// samples; otherwise `pixel_bytes` includes coefficients, too.
inline bool has_one_scan(const ImageHeader &header) noexcept {
    return header.pixel_bytes == 2 * header.channels;
}

// The peak memory of decoding a JPEG row by row: some rows, the resize's rows, and the coefficients of the whole
// picture if it has several scans.
inline std::uint64_t row_decoder_bytes(const ImageHeader &header) noexcept {
    constexpr std::uint64_t base = 1u << 17, column = 256, coefficient = 2;
    std::uint64_t nbytes = base + column * header.width;
    if (!has_one_scan(header))
        nbytes += std::uint64_t{header.width} * header.height * coefficient *
                  static_cast<std::uint64_t>(header.components);
    return nbytes;
}

}  // namespace ksrv
