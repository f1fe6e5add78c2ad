// What is computed of a resized picture.

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

// Some rows or columns that lie together.
struct Lines {
    std::size_t first, count;
};

}  // namespace ksrv
