// OpenCV's area resize of bytes to a smaller picture, bit for bit, row by row during decoding.
//
// Strategy: a value of the result is the weighted sum of the pixels that it covers. The weights are the covered areas.
// `take` first sums along each source row, then adds the row to the sums of the result's row, in floats and in OpenCV's
// order. If both sides shrink by integer factors, OpenCV adds the pixels as integers instead: such pictures are left to
// OpenCV (`resizes_by_rows`).

#pragma once

#include <cstddef>
#include <cstdint>

#include "images/resize/result_rows.hpp"
#include "images/resize/row_resize.hpp"

namespace ksrv {

class AreaResize final : public RowResize {
  public:
    // The share of a source column or row in a column or row of the result.
    struct Share {
        std::uint32_t source, result;
        float part;
    };

    AreaResize(const ResizeWindow &window, const PixelTarget &target, const Coefficients &coefficients) noexcept;

    bool prepare() noexcept override;
    void take(std::uint32_t row, const std::uint8_t *pixels) noexcept override;
    PixelBox box(std::uint32_t, std::uint32_t) const noexcept override { return box_; }

  private:
    ResizeWindow window_;
    std::size_t values_;  // in a row of the result
    ResultRows rows_out_;
    PixelBox box_;
    const Share *columns_ = nullptr, *rows_ = nullptr;  // the shares of columns and of rows, in order of the result
    std::size_t column_count_ = 0, row_count_ = 0;
    std::size_t next_share_ = 0;  // index in `rows_`
    std::size_t next_ = 0;        // the next row of the window to compute
    float *row_ = nullptr, *sum_ = nullptr;  // a source row, resized in width; the sums of the result's next row
};

}  // namespace ksrv
