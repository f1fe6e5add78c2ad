// The coded bytes of a JPEG's scan, up to its next marker, without the zeros that are stuffed into them.
//
// Strategy: a few thousand bytes at a time lie in a window, always as many as an MCU can have codes for, so that
// nothing is checked between the codes of an MCU. Behind the last byte before a marker the window has zeros.

#pragma once

#include <cstddef>
#include <cstdint>

namespace ksrv {

class ScanBytes {
  public:
    // Ten blocks of 64 values, each with a code of 16 bits and 15 bits of its own.
    static constexpr std::size_t MCU_BYTES = 10 * 64 * (16 + 15) / 8;
    // Behind them a reader may look, and begin that far behind the last byte.
    static constexpr std::size_t WORD = 8;

    // Bytes from `begin` on, which is at the first code, to `end`, where the file ends.
    void start(const unsigned char *begin, const unsigned char *end) noexcept;

    // Makes an MCU's bytes readable; returns where the byte at `at` lies now.
    const std::uint8_t *ahead(const std::uint8_t *at) noexcept {
        const bool is_enough = is_whole_ || end_ - at >= static_cast<std::ptrdiff_t>(MCU_BYTES + WORD);
        return is_enough ? at : refill(at);
    }

    // Makes all bytes readable that fit; the window then ends with the segment, unless more than an MCU is left.
    const std::uint8_t *refill(const std::uint8_t *at) noexcept;

    // Whether the window has the last byte before the marker.
    bool is_whole() const noexcept { return is_whole_; }

    // Where the window's bytes begin and end.
    const std::uint8_t *begin() const noexcept { return window_; }
    const std::uint8_t *end() const noexcept { return end_; }

    // Where the file goes on behind the window's bytes: at the marker where these are the last ones.
    const unsigned char *file() const noexcept { return file_; }

  private:
    static constexpr std::size_t WINDOW = 8192;
    static constexpr std::size_t ZEROS = MCU_BYTES + 2 * WORD;

    const unsigned char *file_ = nullptr, *file_end_ = nullptr;
    const std::uint8_t *end_ = window_;
    bool is_whole_ = false;
    std::uint8_t window_[WINDOW + ZEROS];
};

}  // namespace ksrv
