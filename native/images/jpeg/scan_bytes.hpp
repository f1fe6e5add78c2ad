// The coded bytes of a JPEG's scan up to the next marker, without the zeros that are stuffed after each byte 0xFF.
//
// Strategy: the bytes are copied to a window of a few thousand bytes. It always has at least as many bytes as the codes
// of one MCU can take, so that no check is needed within an MCU. After the last byte before a marker the window has
// zeros, which damaged codes read instead of other memory.

#pragma once

#include <cstddef>
#include <cstdint>

namespace ksrv {

class ScanBytes {
  public:
    // Ten blocks of 64 values, each with a code of 16 bits and a value of 15 bits.
    static constexpr std::size_t MCU_BYTES = 10 * 64 * (16 + 15) / 8;
    // A reader may read this many bytes more, and may begin this many bytes after the last byte.
    static constexpr std::size_t WORD = 8;

    // Starts with the bytes from `begin`, the first code, to `end`, the end of the file.
    void start(const unsigned char *begin, const unsigned char *end) noexcept;

    // Makes an MCU's bytes readable. Returns the new position of the byte at `at`.
    const std::uint8_t *ahead(const std::uint8_t *at) noexcept {
        const bool is_enough = is_whole_ || end_ - at >= static_cast<std::ptrdiff_t>(MCU_BYTES + WORD);
        return is_enough ? at : refill(at);
    }

    // Fills the window. It then ends with the segment, unless more than an MCU is left.
    const std::uint8_t *refill(const std::uint8_t *at) noexcept;

    // Whether the window includes the last byte before the marker.
    bool is_whole() const noexcept { return is_whole_; }

    // Begin and end of the window's bytes.
    const std::uint8_t *begin() const noexcept { return window_; }
    const std::uint8_t *end() const noexcept { return end_; }

    // The position in the file after the window's bytes: the marker, if the window is whole.
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
