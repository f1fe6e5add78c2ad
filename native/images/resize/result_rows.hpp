// Stores the rows of a resized picture, or converts them to the numbers of a model.
//
// Strategy: if the model reads the values as they are, a row is written to its final position. Otherwise a few rows are
// collected in the cache and converted together, because starting a conversion costs as much as converting a row.

#pragma once

#include <cstddef>
#include <cstdint>

#include "images/convert_pixels.hpp"
#include "images/resize/window.hpp"

namespace ksrv {

class ResultRows {
  public:
    // `type` is the type of the resized values: PIXEL_U8 or PIXEL_F32.
    ResultRows(const ResizeWindow &window, PixelType type, const PixelTarget &target,
               const Coefficients &coefficients) noexcept;

    // Size of the memory to pass to `use`, which must have the alignment of a value.
    std::size_t nbytes() const noexcept { return direct_ ? 0 : ROWS * row_bytes_; }
    void use(std::uint8_t *memory) noexcept { rows_ = memory; }

    // Where to write row `y`, and no byte more. Rows must be written in order.
    std::uint8_t *place(std::size_t y) noexcept {
        if (direct_) return target_.data + static_cast<std::ptrdiff_t>(y) * target_.row_bytes;
        return rows_ + (y - first_) * row_bytes_;
    }
    // Must be called when row `y` is written: converts the collected rows if their memory is full.
    void done(std::size_t y) noexcept {
        if (!direct_ && (y + 1 == first_ + ROWS || y + 1 == height_)) convert(y + 1);
    }

  private:
    static constexpr std::size_t ROWS = 8;

    void convert(std::size_t end) noexcept;

    PixelTarget target_;
    Coefficients coefficients_;
    PixelType type_;
    std::size_t height_, width_, channels_, row_bytes_;
    bool direct_;  // rows are written to their final positions
    std::uint8_t *rows_ = nullptr;
    std::size_t first_ = 0;  // the row at the beginning of `rows_`
};

}  // namespace ksrv
