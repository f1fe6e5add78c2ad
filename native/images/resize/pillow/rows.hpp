// Pillow's antialiased bilinear resize of 8-bit pictures, bit for bit, row by row during decoding.
//
// Strategy: Pillow's filter is a triangle as wide as the reduction, with fixed-point weights of 22 fractional bits, and
// each pass rounds to 8 bits. A vertical pass multiplies whole rows by a weight, which the compiler vectorises. For the
// horizontal pass sixteen rows are transposed, so that it becomes the same loop over sixteen rows at once, and
// transposed back. Usually sixteen source rows are collected for the horizontal pass, and their results are stored while
// a row of the result needs them. If Pillow resizes in height first, the source rows are stored, and sixteen rows that
// are resized in height are collected for the horizontal pass.

#pragma once

#include <cstddef>
#include <cstdint>

#include "images/resize/result_rows.hpp"
#include "images/resize/pillow/passes.hpp"
#include "images/resize/row_resize.hpp"

namespace ksrv {

class PillowRows final : public RowResize {
  public:
    PillowRows(const ResizeWindow &window, const PixelTarget &target, const Coefficients &coefficients) noexcept;

    bool prepare() noexcept override;
    void take(std::uint32_t row, const std::uint8_t *pixels) noexcept override;
    // Valid after `prepare`.
    PixelBox box(std::uint32_t, std::uint32_t) const noexcept override {
        return {static_cast<std::uint32_t>(rows_.first), static_cast<std::uint32_t>(columns_.first),
                static_cast<std::uint32_t>(rows_.count), static_cast<std::uint32_t>(columns_.count)};
    }

  private:
    std::size_t lay_out(unsigned char *data) noexcept;
    void resize_across(const std::uint8_t *source, std::size_t count, std::uint8_t *target) noexcept;
    void keep_collected() noexcept;
    void make_rows() noexcept;
    void finish_lowered() noexcept;
    void finish(std::size_t y) noexcept;

    ResizeWindow window_;
    std::size_t row_bytes_;  // of a row of the result
    ResultRows rows_out_;
    pillow::Axis across_, down_;  // the weights in width and in height
    Lines columns_, rows_;  // of the source, as needed by the window
    const bool height_first_;  // Pillow resizes in height first
    std::size_t source_bytes_ = 0, kept_bytes_ = 0;  // of the columns of a source row, and of a row in `kept_`
    double *weights_ = nullptr;                              // scratch memory of `make_axis`
    std::uint8_t *groups_ = nullptr, *results_ = nullptr;    // scratch memory of the horizontal pass
    std::uint8_t *collected_ = nullptr;                      // source rows that wait for the horizontal pass
    std::size_t collected_count_ = 0;
    std::uint8_t *lowered_ = nullptr, *narrowed_ = nullptr;  // rows that are resized in height, and then in width
    std::uint8_t *kept_ = nullptr;                 // source rows that are resized in width, unless `height_first_`
    std::size_t kept_first_ = 0, kept_count_ = 0;  // the source rows in `kept_`
    std::size_t kept_room_ = 0;  // the most source rows that `kept_` has memory for
    std::size_t next_ = 0;  // the next row of the window to compute
};

}  // namespace ksrv
