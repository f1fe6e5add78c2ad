// OpenCV's linear resize of pixels that were cast to float, row by row while a picture is decoded.
//
// Strategy: two source rows are enough for a row of the result, so two rows of floats are kept, resized
// in width; a source row that no row of the result reads is not looked at. Integers become floats in the
// vector registers and are never stored as such, and the rows of the result are converted to the model's
// numbers while they are in the cache. The arithmetic is that of OpenCV's own code, bit for bit: left
// times (1 - a) plus right times a, and likewise for rows. (Where OpenCV calls Intel's IPP instead,
// which rounds coefficients more coarsely, it differs by up to 0.012 of 255.)

#pragma once

#include <cstddef>
#include <cstdint>

#include "images/convert_pixels.hpp"
#include "images/decode/row_memory.hpp"
#include "images/resize/linear_rows.hpp"
#include "images/resize/row_resize.hpp"
#include "images/resize/window.hpp"

namespace ksrv {

class LinearFloats final : public RowResize {
  public:
    // `sample` is PIXEL_U8 or PIXEL_U16: of the rows that are taken. `target` says where the window goes.
    LinearFloats(const ResizeWindow &window, int sample, const PixelTarget &target,
                 const Coefficients &coefficients) noexcept;

    bool prepare() noexcept override;
    PixelBox box(std::uint32_t, std::uint32_t) const noexcept override { return linear_box(window_); }
    void take(std::uint32_t row, const std::uint8_t *pixels) noexcept override;

  private:
    void resize_width(const std::uint8_t *pixels, float *out) const noexcept;
    void emit(std::size_t row, const float *upper, const float *lower, float weight) noexcept;

    ResizeWindow window_;
    int sample_;
    PixelTarget target_;
    Coefficients coefficients_;           // of the arithmetic that is left behind the resize
    int arithmetic_ = ARITHMETIC_NONE;    // done together with it
    const float *constants_ = nullptr;    // of that, for each value of a row: the first ones, the second ones
    bool direct_;                         // results are the target's numbers as they are
    std::size_t values_;                  // of a row of the result
    std::size_t whole_vectors_ = 0;       // pixels of a row that may be read eight bytes at a time
    const std::uint32_t *offsets_ = nullptr;  // of the left pixel of each column, in values
    const float *weights_ = nullptr;          // of its right neighbour
    LinearRows<float> rows_;
    float *made_ = nullptr;
};

}  // namespace ksrv
