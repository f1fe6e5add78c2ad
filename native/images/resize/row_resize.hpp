// Resizes that process a picture row by row during decoding, and convert the result.
//
// The pixels equal the results of OpenCV or Pillow bit for bit; see the classes.

#pragma once

#include <memory>

#include "images/convert_pixels.hpp"
#include "images/decode/row_receiver.hpp"
#include "images/resize/window.hpp"

namespace ksrv {

enum class ResizeKind : int {
    linear_floats = 0,  // OpenCV's linear resize of pixels that were cast to float
    linear_bytes,       // OpenCV's linear resize of bytes
    area,               // OpenCV's area resize of bytes, if it makes pictures smaller
    pillow,             // Pillow's bilinear resize of bytes
};

class RowResize : public RowReceiver {
  public:
    virtual ~RowResize() = default;
    // Allocates the rows. Must be called once, before the first row. False if memory is short.
    virtual bool prepare() noexcept = 0;
};

// Whether a picture can be resized row by row.
bool resizes_by_rows(ResizeKind kind, const ResizeWindow &window) noexcept;

// The resize of one picture. Null if memory is short. `sample`, the type of the source's values, is PIXEL_U8, or
// PIXEL_U16 for `linear_floats`. `target` is the memory for the window.
std::unique_ptr<RowResize> make_row_resize(ResizeKind kind, const ResizeWindow &window, int sample,
                                           const PixelTarget &target,
                                           const Coefficients &coefficients) noexcept;

}  // namespace ksrv
