#include "images/resize/upright_lines.hpp"

#include <algorithm>

#include "images/decode/row_memory.hpp"
#include "images/resize/neighbours.hpp"

namespace ksrv {
namespace {

// Whether the first upright row is stored last.
bool is_stored_from_bottom(int orientation) noexcept {
    return orientation == 3 || orientation == 4 || orientation == 7 || orientation == 8;
}

// Whether the first pixel of an upright row is stored last in its row or column.
bool is_stored_from_right(int orientation) noexcept {
    return orientation == 2 || orientation == 3 || orientation == 6 || orientation == 7;
}

std::size_t most_lines(std::size_t count, std::size_t from) noexcept { return std::min(2 * count, from); }

// Writes the rows or columns that the results [start, start + count) interpolate between, each once. Returns their
// number.
std::size_t pick(std::size_t start, std::size_t count, std::size_t from, std::size_t to,
                 std::uint32_t *lines) noexcept {
    const auto last = static_cast<std::ptrdiff_t>(from) - 1;
    std::size_t picked = 0;
    for (std::size_t at = start; at < start + count; ++at) {
        const std::ptrdiff_t first = between_neighbours(at, from, to).first;
        for (const std::ptrdiff_t one : {first, first + 1}) {
            const auto line = static_cast<std::uint32_t>(std::clamp<std::ptrdiff_t>(one, 0, last));
            if (picked == 0 || line > lines[picked - 1]) lines[picked++] = line;
        }
    }
    return picked;
}

template <std::size_t CHANNELS>
void pick_pixels(const std::uint8_t *row, const std::uint32_t *lines, std::size_t count, std::ptrdiff_t first,
                 std::ptrdiff_t direction, std::uint8_t *out, std::size_t step) noexcept {
    for (std::size_t i = 0; i < count; ++i, out += step) {
        const std::uint8_t *const from = row + (first + direction * static_cast<std::ptrdiff_t>(lines[i])) *
                                                   static_cast<std::ptrdiff_t>(CHANNELS);
        for (std::size_t c = 0; c < CHANNELS; ++c) out[c] = from[c];
    }
}

template <std::size_t CHANNELS>
void spread_pixels(const std::uint8_t *pixels, const std::uint32_t *lines, std::size_t count,
                   std::uint8_t *row) noexcept {
    for (std::size_t i = 0; i < count; ++i)
        for (std::size_t c = 0; c < CHANNELS; ++c) row[lines[i] * CHANNELS + c] = *pixels++;
}

}  // namespace

UprightLines::UprightLines(int orientation, const ResizeWindow &window) noexcept
    : window_(window),
      transposed_(is_stored_transposed(orientation)),
      rows_{nullptr, 0, static_cast<std::uint32_t>(window.height), is_stored_from_bottom(orientation)},
      columns_{nullptr, 0, static_cast<std::uint32_t>(window.width), is_stored_from_right(orientation)} {}

UprightLines::~UprightLines() { row_memory<UprightLines>().trim(); }

std::uint64_t UprightLines::nbytes(const ResizeWindow &window) noexcept {
    const std::uint64_t rows = most_lines(window.out_height, window.height);
    const std::uint64_t columns = most_lines(window.out_width, window.width);
    return (rows + columns) * sizeof(std::uint32_t) + (rows * columns + window.width) * window.channels +
           RowMemory::SLACK;  // a resize may read whole vectors of a row
}

bool UprightLines::prepare() noexcept {
    std::uint8_t *const start = row_memory<UprightLines>().reserve(static_cast<std::size_t>(nbytes(window_)));
    if (!start) return false;
    rows_.lines = reinterpret_cast<std::uint32_t *>(start);
    rows_.count = pick(window_.top, window_.out_height, window_.height, window_.full_height, rows_.lines);
    columns_.lines = rows_.lines + rows_.count;
    columns_.count = pick(window_.left, window_.out_width, window_.width, window_.full_width, columns_.lines);
    row_ = reinterpret_cast<std::uint8_t *>(columns_.lines + columns_.count);
    pixels_ = row_ + window_.width * window_.channels + RowMemory::SLACK;
    return true;
}

PixelBox UprightLines::box(std::uint32_t, std::uint32_t) const noexcept {
    const Picked &down = transposed_ ? columns_ : rows_, &across = transposed_ ? rows_ : columns_;
    return {down.first_stored(), across.first_stored(), down.last_stored() - down.first_stored() + 1,
            across.last_stored() - across.first_stored() + 1};
}

void UprightLines::take(std::uint32_t row, const std::uint8_t *pixels) noexcept {
    const Picked &down = transposed_ ? columns_ : rows_, &across = transposed_ ? rows_ : columns_;
    if (taken_ == down.count) return;
    const std::size_t index = down.reversed ? down.count - 1 - taken_ : taken_;
    if (down.stored(index) != row) return;
    ++taken_;
    const std::size_t channels = window_.channels, row_bytes = columns_.count * channels;
    std::uint8_t *const out = pixels_ + index * (transposed_ ? channels : row_bytes);
    const std::size_t step = transposed_ ? row_bytes : channels;
    const std::ptrdiff_t first = across.reversed ? static_cast<std::ptrdiff_t>(across.size) - 1 : 0;
    const std::ptrdiff_t direction = across.reversed ? -1 : 1;
    if (channels == 3) {
        pick_pixels<3>(pixels, across.lines, across.count, first, direction, out, step);
    } else {
        pick_pixels<1>(pixels, across.lines, across.count, first, direction, out, step);
    }
}

void UprightLines::hand_on(RowReceiver &receiver) noexcept {
    const std::size_t channels = window_.channels;
    const std::uint8_t *pixels = pixels_;
    for (std::size_t i = 0; i < rows_.count; ++i, pixels += columns_.count * channels) {
        if (channels == 3) {
            spread_pixels<3>(pixels, columns_.lines, columns_.count, row_);
        } else {
            spread_pixels<1>(pixels, columns_.lines, columns_.count, row_);
        }
        receiver.take(rows_.lines[i], row_);
    }
}

}  // namespace ksrv
