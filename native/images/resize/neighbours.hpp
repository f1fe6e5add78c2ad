// Between which two rows or columns of a picture a value of its linear resize lies.

#pragma once

#include <cmath>
#include <cstddef>

namespace ksrv {

struct Neighbours {
    std::ptrdiff_t first;  // the second one is the next; either may lie outside of the picture
    float weight;          // of the second
};

// OpenCV's own steps and precisions, so that the bits are equal.
inline Neighbours between_neighbours(std::size_t at, std::size_t from, std::size_t to) noexcept {
    const double scale = 1.0 / (static_cast<double>(to) / static_cast<double>(from));
    const float position = static_cast<float>((static_cast<double>(at) + 0.5) * scale - 0.5);
    const float below = std::floor(position);
    return {static_cast<std::ptrdiff_t>(below), position - below};
}

}  // namespace ksrv
