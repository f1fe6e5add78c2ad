// Stores the two source rows, resized in width, between which a linear resize interpolates.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "images/resize/neighbours.hpp"
#include "images/resize/window.hpp"

namespace ksrv {

template <typename Value> struct LinearRows {
    Value *rows[2] = {nullptr, nullptr};
    std::size_t held[2] = {SIZE_MAX, SIZE_MAX};  // the source rows whose resized values are in `rows`
    std::size_t next = 0;                        // the next row of the window to compute

    // Takes a source row. Calls `resize(out)` if the row is needed, and `emit(row, upper, lower, weight)` for each row
    // of the window that can then be computed.
    template <typename Resize, typename Emit>
    void take(const ResizeWindow &window, std::uint32_t row, Resize resize, Emit emit) noexcept {
        const std::ptrdiff_t last = static_cast<std::ptrdiff_t>(window.height) - 1;
        while (next < window.out_height) {
            const Neighbours wanted = between_neighbours(window.top + next, window.height, window.full_height);
            // A row outside of the picture is replaced by the border row, but keeps its weight, as in OpenCV.
            const std::size_t upper = static_cast<std::size_t>(std::clamp<std::ptrdiff_t>(wanted.first, 0, last));
            const std::size_t lower =
                static_cast<std::size_t>(std::clamp<std::ptrdiff_t>(wanted.first + 1, 0, last));
            if (row != upper && row != lower) return;
            if (held[row & 1] != row) {
                resize(rows[row & 1]);
                held[row & 1] = row;
            }
            if (row != lower) return;
            emit(next, rows[upper & 1], rows[lower & 1], wanted.weight);
            ++next;
        }
    }
};

}  // namespace ksrv
