// How a picture is stored that EXIF's orientation, from 1 to 8, turns.

#pragma once

namespace ksrv {

// Rows are stored as columns.
inline bool is_stored_lying(int orientation) noexcept { return orientation >= 5; }

// The first pixel of an upright row is the last one of those it is made of.
inline bool is_stored_from_right(int orientation) noexcept {
    return orientation == 2 || orientation == 3 || orientation == 6 || orientation == 7;
}

// The first upright row is made of what is stored last.
inline bool is_stored_from_bottom(int orientation) noexcept {
    return orientation == 3 || orientation == 4 || orientation == 7 || orientation == 8;
}

}  // namespace ksrv
