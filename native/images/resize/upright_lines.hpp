// Turns a picture by EXIF's orientation, but only the pixels that a linear resize needs.
//
// Strategy: each row of the result lies between two rows of the upright picture, and each column between two columns,
// so that few pixels of a large picture are needed. These are picked from the stored rows during decoding and stored
// upright. They are then passed on in rows that are as wide as the picture, with undefined pixels elsewhere, so that
// the resize computes with the same numbers as from a whole picture.

#pragma once

#include <cstddef>
#include <cstdint>

#include "images/decode/row_receiver.hpp"
#include "images/resize/window.hpp"

namespace ksrv {

// Whether a picture with an EXIF orientation, from 1 to 8, stores upright rows as columns.
inline bool is_stored_transposed(int orientation) noexcept { return orientation >= 5; }

class UprightLines final : public RowReceiver {
  public:
    // `window` refers to the upright picture. `orientation` is from 1 to 8.
    UprightLines(int orientation, const ResizeWindow &window) noexcept;
    ~UprightLines();
    UprightLines(const UprightLines &) = delete;
    UprightLines &operator=(const UprightLines &) = delete;

    // The most memory that an object allocates.
    static std::uint64_t nbytes(const ResizeWindow &window) noexcept;

    // Allocates memory for the pixels. False if memory is short.
    bool prepare() noexcept;

    // Takes stored rows. `box` refers to the stored picture.
    void take(std::uint32_t row, const std::uint8_t *pixels) noexcept override;
    PixelBox box(std::uint32_t, std::uint32_t) const noexcept override;

    // Passes on the picked rows, upright.
    void hand_on(RowReceiver &receiver) noexcept;

  private:
    // Rows or columns of the upright picture in order, and whether they are stored in reverse order.
    struct Picked {
        std::uint32_t *lines;
        std::size_t count;
        std::uint32_t size;  // of the picture
        bool reversed;

        std::uint32_t stored(std::size_t index) const noexcept {
            return reversed ? size - 1 - lines[index] : lines[index];
        }
        std::uint32_t first_stored() const noexcept { return stored(reversed ? count - 1 : 0); }
        std::uint32_t last_stored() const noexcept { return stored(reversed ? 0 : count - 1); }
    };

    const ResizeWindow window_;
    const bool transposed_;  // upright rows are stored as columns
    Picked rows_, columns_;
    std::uint8_t *pixels_ = nullptr, *row_ = nullptr;
    std::size_t taken_ = 0;  // number of stored rows taken so far
};

}  // namespace ksrv
