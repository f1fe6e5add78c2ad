// OpenCV's linear resize, bit for bit, row by row during decoding.
//
// Strategy: a row of the result needs two source rows, so only two rows are stored, resized in width. Source rows that
// no row of the result needs are skipped. Rows of the result are converted to the model's numbers while they are in the
// cache.
//
// `LinearResize<float>` resizes pixels as if they were cast to float first: left * (1 - a) + right * a, and likewise
// for rows. Integers are converted to floats in vector registers and never stored as floats. (OpenCV may call Intel's
// IPP instead, which rounds coefficients more coarsely. The results then differ by up to 0.012 of 255.)
//
// `LinearResize<std::int16_t>` resizes bytes: weights are integers of eleven bits. Values that were resized in width
// are shifted down to sixteen bits, as OpenCV's vertical pass expects, so that a vector has sixteen of them.

#pragma once

#include <cstddef>
#include <cstdint>

#include "images/resize/result_rows.hpp"
#include "images/resize/row_resize.hpp"

namespace ksrv {

template <typename Value> class LinearResize final : public RowResize {
  public:
    // `sample` is the type of the source rows: PIXEL_U8, or PIXEL_U16 for floats.
    LinearResize(const ResizeWindow &window, int sample, const PixelTarget &target,
                 const Coefficients &coefficients) noexcept;

    bool prepare() noexcept override;
    void take(std::uint32_t row, const std::uint8_t *pixels) noexcept override;
    PixelBox box(std::uint32_t, std::uint32_t) const noexcept override;

  private:
    template <typename Sample>
    void resize_pixels(const Sample *row, std::size_t begin, Value *out) const noexcept;
    void resize_width(const std::uint8_t *pixels, Value *out) const noexcept;

    ResizeWindow window_;
    int sample_;
    std::size_t values_;  // in a row of the result
    ResultRows results_;
    std::size_t whole_vectors_ = 0;           // pixels of a row that may be read in pieces of eight bytes
    const std::uint32_t *offsets_ = nullptr;  // of the left pixel of each column, in values
    const Value *weights_ = nullptr;          // of each column's left and right neighbour
    Value *rows_[2] = {nullptr, nullptr};     // source rows, resized in width
    std::size_t stored_[2] = {SIZE_MAX, SIZE_MAX};  // the numbers of the source rows in `rows_`
    std::size_t next_ = 0;                          // the next row of the window to compute
};

extern template class LinearResize<float>;
extern template class LinearResize<std::int16_t>;

}  // namespace ksrv
