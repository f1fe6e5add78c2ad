// The pixels of a picture turned by EXIF's orientation that a linear resize reads.
//
// Strategy: each row of the result lies between two rows of the upright picture, and each column between two
// columns, so that of a large picture few pixels are read. Those are picked out of the stored rows while they are
// decoded, and lie in memory as they are seen. They are then handed on in rows as wide as the picture,
// which hold anything elsewhere, so that the resize has the same numbers as from a whole picture.

#pragma once

#include <cstddef>
#include <cstdint>

#include "images/decode/row_receiver.hpp"
#include "images/resize/window.hpp"

namespace ksrv {

class UprightLines final : public RowReceiver {
  public:
    // The window is that of the upright picture, `orientation` is from 1 to 8.
    UprightLines(int orientation, const ResizeWindow &window) noexcept;
    ~UprightLines();
    UprightLines(const UprightLines &) = delete;
    UprightLines &operator=(const UprightLines &) = delete;

    // The most memory that it takes.
    static std::uint64_t nbytes(const ResizeWindow &window) noexcept;

    // Makes room for the pixels. False: there is no memory.
    bool prepare() noexcept;

    // Stored rows. `box` is that of the stored picture.
    void take(std::uint32_t row, const std::uint8_t *pixels) noexcept override;
    PixelBox box(std::uint32_t, std::uint32_t) const noexcept override;

    // Hands on the upright rows that were picked.
    void hand_on(RowReceiver &receiver) noexcept;

  private:
    // Rows or columns of the upright picture in order, and whether they are stored from the last one to the first.
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
    const bool lies_;  // rows are stored as columns
    Picked rows_, columns_;
    std::uint8_t *pixels_ = nullptr, *row_ = nullptr;
    std::size_t taken_ = 0;  // stored rows
};

}  // namespace ksrv
