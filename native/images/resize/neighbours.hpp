// The two source rows or columns between which a linear resize interpolates.

#pragma once

#include <cmath>
#include <cstddef>

namespace ksrv {

struct Neighbours {
    std::ptrdiff_t first;  // the second is the next; either may be outside of the picture
    float weight;          // of the second
};

// OpenCV's steps and precision, so that results are equal bit for bit.
inline Neighbours between_neighbours(std::size_t at, std::size_t from, std::size_t to) noexcept {
    const double scale = 1.0 / (static_cast<double>(to) / static_cast<double>(from));
    const float position = static_cast<float>((static_cast<double>(at) + 0.5) * scale - 0.5);
    const float below = std::floor(position);
    return {static_cast<std::ptrdiff_t>(below), position - below};
}

}  // namespace ksrv
