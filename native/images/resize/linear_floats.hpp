// OpenCV's linear resize of pixels that were cast to float, row by row during decoding.
//
// Strategy: a row of the result needs two source rows, so only two rows of floats are stored, resized in width. Source
// rows that no row of the result needs are skipped. Integers are converted to floats in vector registers and never
// stored as floats, and rows of the result are converted to the model's numbers while they are in the cache. The
// arithmetic equals OpenCV's code bit for bit: left times (1 - a) plus right times a, and likewise for rows. (OpenCV
// may call Intel's IPP instead, which rounds coefficients more coarsely. The results then differ by up to 0.012 of
// 255.)

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
    // `sample` is the type of the source rows, PIXEL_U8 or PIXEL_U16. `target` is the memory for the window.
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
    Coefficients coefficients_;
    Constants<float> constants_;
    bool direct_;                         // the results are stored in the target without conversion
    std::size_t values_;                  // in a row of the result
    std::size_t whole_vectors_ = 0;       // pixels of a row that may be read in pieces of eight bytes
    const std::uint32_t *offsets_ = nullptr;  // of the left pixel of each column, in values
    const float *weights_ = nullptr;          // of each column's right neighbour
    LinearRows<float> rows_;
    float *made_ = nullptr;
};

}  // namespace ksrv
