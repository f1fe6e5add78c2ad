// How a picture with an EXIF orientation, from 1 to 8, is stored.

#pragma once

namespace ksrv {

// Upright rows are stored as columns.
inline bool is_stored_transposed(int orientation) noexcept { return orientation >= 5; }

// The first pixel of an upright row is stored last in its row or column.
inline bool is_stored_from_right(int orientation) noexcept {
    return orientation == 2 || orientation == 3 || orientation == 6 || orientation == 7;
}

// The first upright row is stored last.
inline bool is_stored_from_bottom(int orientation) noexcept {
    return orientation == 3 || orientation == 4 || orientation == 7 || orientation == 8;
}

}  // namespace ksrv
