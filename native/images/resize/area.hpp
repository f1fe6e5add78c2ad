// OpenCV's area resize of bytes to a smaller picture, row by row while it is decoded, bit for bit.
//
// Strategy: a value of the result is the sum over the pixels under it, each with the share of it that
// lies there: first along a row, then down the rows, in floats and in OpenCV's order. Where both sides
// shrink by whole numbers the pixels under a value are added as integers instead, as OpenCV does.

#pragma once

#include <cstddef>
#include <cstdint>

#include "images/resize/byte_rows.hpp"
#include "images/resize/row_resize.hpp"

namespace ksrv {

class AreaResize final : public RowResize {
  public:
    // What one column or row of the result has of one of the source.
    struct Share {
        std::uint32_t source, result;
        float part;
    };

    AreaResize(const ResizeWindow &window, const PixelTarget &target,
               const Coefficients &coefficients) noexcept;

    bool prepare() noexcept override;
    void take(std::uint32_t row, const std::uint8_t *pixels) noexcept override;
    PixelBox box(std::uint32_t, std::uint32_t) const noexcept override { return box_; }

  private:
    void take_whole(std::uint32_t row, const std::uint8_t *pixels) noexcept;
    void take_shares(std::uint32_t row, const std::uint8_t *pixels) noexcept;

    ResizeWindow window_;
    std::size_t values_;  // of a row of the result
    ByteRows rows_out_;
    PixelBox box_;
    std::size_t whole_x_ = 0, whole_y_ = 0;  // by which both sides shrink, where these are whole numbers
    const Share *columns_ = nullptr, *rows_ = nullptr;
    std::size_t column_count_ = 0, row_count_ = 0;
    std::size_t next_share_ = 0;  // of `rows_`
    std::size_t next_ = 0;        // row of the window that is made next
    float *row_ = nullptr, *sum_ = nullptr;
    std::int32_t *sums_ = nullptr;
};

}  // namespace ksrv
