// A picture that EXIF's orientation turns: kept as it is stored, and handed on row by row as it is seen.

#pragma once

#include <cstddef>
#include <cstdint>

#include "image/row_receiver.hpp"

namespace ksrv {

class UprightPicture final : public RowReceiver {
  public:
    // `height` and `width` are those of the upright picture, `orientation` is from 1 to 8.
    UprightPicture(int orientation, std::uint32_t height, std::uint32_t width, std::size_t channels) noexcept;
    ~UprightPicture();
    UprightPicture(const UprightPicture &) = delete;
    UprightPicture &operator=(const UprightPicture &) = delete;

    // Makes room for the picture. False: there is no memory.
    bool prepare() noexcept;

    std::uint32_t stored_height() const noexcept { return lies_ ? width_ : height_; }
    std::uint32_t stored_width() const noexcept { return lies_ ? height_ : width_; }

    // The stored rows, all of them.
    void take(std::uint32_t, const std::uint8_t *) noexcept override {}
    std::uint8_t *place(std::uint32_t row) noexcept override { return pixels_ + row * stored_bytes(); }

    // Hands on the rows that the receiver looks at.
    void hand_on(RowReceiver &receiver) noexcept;

  private:
    std::size_t stored_bytes() const noexcept { return stored_width() * channels_; }
    void make_rows(std::uint32_t first, std::uint32_t count) noexcept;

    const std::uint32_t height_, width_;
    const std::size_t channels_;
    const bool lies_;            // rows are stored as columns
    const bool from_right_;      // the first pixel of a row is the last one of those it is made of
    const bool from_bottom_;     // the first row is made of what is stored last
    std::uint8_t *pixels_ = nullptr, *rows_ = nullptr;
};

}  // namespace ksrv
