// The part of a resized picture that is computed.

#pragma once

#include <cstddef>

namespace ksrv {

// The window [top, top + out_height) x [left, left + out_width) of the resize of a height x width picture
// to full_height x full_width.
struct ResizeWindow {
    std::size_t height, width, channels;
    std::size_t full_height, full_width;
    std::size_t top, left, out_height, out_width;
};

// A range of rows or columns.
struct Lines {
    std::size_t first, count;
};

}  // namespace ksrv
