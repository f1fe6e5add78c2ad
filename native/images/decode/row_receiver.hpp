// The interface that receives a picture's rows during decoding.

#pragma once

#include <cstdint>

namespace ksrv {

// The part of a picture whose pixels are used. Other pixels may be undefined.
struct PixelBox {
    std::uint32_t top, left, height, width;
};

// Receives each row once, from top to bottom.
class RowReceiver {
  public:
    // `pixels` is the row's first pixel. Outside of the box the row is undefined.
    virtual void take(std::uint32_t row, const std::uint8_t *pixels) noexcept = 0;
    // Memory for a row, if the receiver wants the decoder to write there, else null.
    virtual std::uint8_t *place(std::uint32_t) noexcept { return nullptr; }
    // The part that the receiver needs of a picture of this size. Rows outside of it may be left out.
    virtual PixelBox box(std::uint32_t height, std::uint32_t width) const noexcept {
        return {0, 0, height, width};
    }

  protected:
    ~RowReceiver() = default;
};

}  // namespace ksrv
