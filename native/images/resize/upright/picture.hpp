// Stores a picture with an EXIF orientation as it is decoded, and passes it on upright, row by row.

#pragma once

#include <cstddef>
#include <cstdint>

#include "images/decode/row_receiver.hpp"

namespace ksrv {

class UprightPicture final : public RowReceiver {
  public:
    // `height` and `width` are of the upright picture. `orientation` is from 1 to 8.
    UprightPicture(int orientation, std::uint32_t height, std::uint32_t width, std::size_t channels) noexcept;
    ~UprightPicture();
    UprightPicture(const UprightPicture &) = delete;
    UprightPicture &operator=(const UprightPicture &) = delete;

    // The memory for a picture.
    static std::uint64_t nbytes(std::uint32_t height, std::uint32_t width, std::size_t channels) noexcept;

    // Allocates memory for the picture. False if memory is short.
    bool prepare() noexcept;

    // The decoder writes the rows in place, so that nothing remains to be done.
    void take(std::uint32_t, const std::uint8_t *) noexcept override {}
    std::uint8_t *place(std::uint32_t row) noexcept override { return pixels_ + row * stored_bytes(); }

    // Passes on the rows that the receiver needs.
    void hand_on(RowReceiver &receiver) noexcept;

  private:
    // Rows that are made of the stored columns together: the bytes of a cache line are read once.
    static constexpr std::uint32_t ROWS_AT_ONCE = 16;

    std::size_t stored_bytes() const noexcept { return (transposed_ ? height_ : width_) * channels_; }
    void make_rows(std::uint32_t first, std::uint32_t count) noexcept;

    const std::uint32_t height_, width_;
    const std::size_t channels_;
    const bool transposed_, from_right_, from_bottom_;  // see orientation.hpp
    std::uint8_t *pixels_ = nullptr, *rows_ = nullptr;
};

}  // namespace ksrv
