// The resizes that take a picture row by row, while it is decoded, and convert their result on the way.
//
// Each gives the pixels of the library that it is named after, bit for bit; see the classes.

#pragma once

#include <cstdint>
#include <memory>

#include "images/convert_pixels.hpp"
#include "images/decode/row_receiver.hpp"
#include "images/resize/window.hpp"

namespace ksrv {

enum class ResizeKind : int {
    linear_floats = 0,  // OpenCV's linear resize of pixels that were cast to float
    linear_bytes,       // OpenCV's linear resize of bytes
    area,               // OpenCV's area resize of bytes, where it makes pictures smaller
    pillow,             // Pillow's bilinear resize of bytes
};

class RowResize : public RowReceiver {
  public:
    virtual ~RowResize() = default;
    // False where there is no memory.
    virtual bool prepare() noexcept = 0;
};

// Whether a picture can be resized without keeping it.
bool resizes_by_rows(ResizeKind kind, const ResizeWindow &window) noexcept;

// Null where there is no memory. `sample` is PIXEL_U8, or PIXEL_U16 for `linear_floats`. `target` says
// where the window goes.
std::unique_ptr<RowResize> make_row_resize(ResizeKind kind, const ResizeWindow &window, int sample,
                                           const PixelTarget &target,
                                           const Coefficients &coefficients) noexcept;

// The rows and columns of a picture that results read which lie between their neighbours.
PixelBox linear_box(const ResizeWindow &window) noexcept;

}  // namespace ksrv
