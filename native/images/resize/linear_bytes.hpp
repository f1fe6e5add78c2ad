// OpenCV's linear resize of bytes, bit for bit, row by row during decoding.
//
// Strategy: weights are integers of eleven bits. Values that were resized in width are shifted down to sixteen bits, as
// OpenCV's vertical pass expects, so that a vector has sixteen of them.

#pragma once

#include <cstddef>
#include <cstdint>

#include "images/resize/byte_rows.hpp"
#include "images/resize/linear_rows.hpp"
#include "images/resize/row_resize.hpp"

namespace ksrv {

class LinearBytes final : public RowResize {
  public:
    LinearBytes(const ResizeWindow &window, const PixelTarget &target,
                const Coefficients &coefficients) noexcept
        : window_(window), values_(window.out_width * window.channels),
          rows_out_(target, coefficients, window.out_height, window.out_width, window.channels) {}

    bool prepare() noexcept override;
    void take(std::uint32_t row, const std::uint8_t *pixels) noexcept override;
    PixelBox box(std::uint32_t, std::uint32_t) const noexcept override { return linear_box(window_); }

  private:
    void resize_width(const std::uint8_t *pixels, std::int16_t *out) const noexcept;

    ResizeWindow window_;
    std::size_t values_;  // in a row of the result
    ByteRows rows_out_;
    std::size_t whole_vectors_ = 0;            // pixels of a row that may be read in pieces of eight bytes
    const std::uint32_t *offsets_ = nullptr;   // of the left pixel of each column, in values
    const std::int16_t *weights_ = nullptr;    // of each column's left and right neighbour
    LinearRows<std::int16_t> rows_;
};

}  // namespace ksrv
