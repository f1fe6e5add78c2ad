// Pillow's bilinear resize, bit for bit, row by row during decoding.
//
// Strategy: sixteen rows are collected for the horizontal pass, and their results are stored while a row of the result
// needs them. Pictures that Pillow resizes in height first are not supported.

#pragma once

#include <cstddef>
#include <cstdint>

#include "images/resize/byte_rows.hpp"
#include "images/resize/pillow/passes.hpp"
#include "images/resize/row_resize.hpp"

namespace ksrv {

class PillowRows final : public RowResize {
  public:
    PillowRows(const ResizeWindow &window, const PixelTarget &target,
               const Coefficients &coefficients) noexcept
        : window_(window), row_bytes_(window.out_width * window.channels),
          rows_out_(target, coefficients, window.out_height, window.out_width, window.channels),
          columns_{window.left, window.out_width}, rows_{window.top, window.out_height} {}

    bool prepare() noexcept override;
    void take(std::uint32_t row, const std::uint8_t *pixels) noexcept override;
    // Valid after `prepare`.
    PixelBox box(std::uint32_t, std::uint32_t) const noexcept override {
        return {static_cast<std::uint32_t>(rows_.first), static_cast<std::uint32_t>(columns_.first),
                static_cast<std::uint32_t>(rows_.count), static_cast<std::uint32_t>(columns_.count)};
    }

  private:
    std::size_t lay_out(unsigned char *data) noexcept;
    void resize_collected() noexcept;
    void make_rows() noexcept;

    ResizeWindow window_;
    std::size_t row_bytes_;  // of a row of the result
    ByteRows rows_out_;
    pillow::Axis across_, down_;
    Lines columns_, rows_;  // of the source, as needed by the window
    double *weights_ = nullptr;
    std::uint8_t *collected_ = nullptr, *groups_ = nullptr, *results_ = nullptr;
    std::size_t collected_count_ = 0;
    std::uint8_t *kept_ = nullptr;                 // rows that are resized in width
    std::size_t kept_first_ = 0, kept_count_ = 0;  // the source rows in `kept_`
    std::size_t kept_most_ = 0;
    std::size_t next_ = 0;  // the next row of the window to compute
};

}  // namespace ksrv
