// Rows of bytes on their way to the numbers that a model reads.
//
// Strategy: where bytes are all that the model reads, a row is written where it stays. Otherwise a few rows
// are collected in the cache and converted together, since beginning a conversion costs as much as a
// row of it.

#pragma once

#include <cstddef>
#include <cstdint>

#include "images/convert_pixels.hpp"

namespace ksrv {

class ByteRows {
  public:
    ByteRows(const PixelTarget &target, const Coefficients &coefficients, std::size_t height,
             std::size_t width, std::size_t channels) noexcept;

    // The memory that `use` wants.
    std::size_t nbytes() const noexcept { return direct_ ? 0 : ROWS * row_bytes_; }
    void use(std::uint8_t *memory) noexcept { rows_ = memory; }

    // Where row `y` is written, exactly its bytes; rows come in order.
    std::uint8_t *place(std::size_t y) noexcept {
        if (direct_) return target_.data + static_cast<std::ptrdiff_t>(y) * target_.row_bytes;
        return rows_ + (y - first_) * row_bytes_;
    }
    // Row `y` is written.
    void done(std::size_t y) noexcept {
        if (!direct_ && (y + 1 == first_ + ROWS || y + 1 == height_)) convert(y + 1);
    }

  private:
    static constexpr std::size_t ROWS = 8;

    void convert(std::size_t end) noexcept;

    PixelTarget target_;
    Coefficients coefficients_;
    std::size_t height_, width_, channels_, row_bytes_;
    bool direct_;
    std::uint8_t *rows_ = nullptr;
    std::size_t first_ = 0;  // the row that lies first in the memory
};

}  // namespace ksrv
