// The receiver of a picture's rows while it is decoded.

#pragma once

#include <cstddef>
#include <cstdint>

namespace ksrv {

// The part of a picture whose pixels are looked at. The others may be anything.
struct PixelBox {
    std::uint32_t top, left, height, width;
};

// Takes rows, from the top of the picture to its bottom, each once.
class RowReceiver {
  public:
    // `pixels` is the row's first pixel; outside of the box the row holds anything.
    virtual void take(std::uint32_t row, const std::uint8_t *pixels) noexcept = 0;
    // Memory for a row, for a receiver that wants the decoder to write there; null for any.
    virtual std::uint8_t *place(std::uint32_t) noexcept { return nullptr; }
    // What the receiver reads of a picture of that size. Rows above and below it may not be handed on.
    virtual PixelBox box(std::uint32_t height, std::uint32_t width) const noexcept {
        return {0, 0, height, width};
    }

  protected:
    ~RowReceiver() = default;
};

}  // namespace ksrv
