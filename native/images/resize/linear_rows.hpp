// The two source rows between which a row of a linear resize lies, resized in width.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "images/resize/neighbours.hpp"
#include "images/resize/window.hpp"

namespace ksrv {

template <typename Value> struct LinearRows {
    Value *rows[2] = {nullptr, nullptr};
    std::size_t held[2] = {SIZE_MAX, SIZE_MAX};  // which source rows are resized in `rows`
    std::size_t next = 0;                        // row of the window that is made next

    // Takes a source row. Calls `resize(out)` where the row is read, and `emit(row, upper, lower, weight)`
    // for each row of the window that is complete with it.
    template <typename Resize, typename Emit>
    void take(const ResizeWindow &window, std::uint32_t row, Resize resize, Emit emit) noexcept {
        const std::ptrdiff_t last = static_cast<std::ptrdiff_t>(window.height) - 1;
        while (next < window.out_height) {
            const Neighbours wanted = between_neighbours(window.top + next, window.height, window.full_height);
            // A row outside is the one at the border, but keeps its weight, as in OpenCV.
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
