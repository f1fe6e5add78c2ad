#include "images/resize/upright/picture.hpp"

#include <algorithm>

#include "images/decode/row_memory.hpp"
#include "images/resize/upright/orientation.hpp"

namespace ksrv {
namespace {

ThreadRowMemory &memory() noexcept {
    static ThreadRowMemory kept;
    return kept;
}

// Copies `count` pixels whose distance is `step` bytes.
template <std::size_t CHANNELS>
void gather(const std::uint8_t *from, std::ptrdiff_t step, std::size_t count, std::uint8_t *out) noexcept {
    for (; count != 0; --count, from += step)
        for (std::size_t c = 0; c < CHANNELS; ++c) *out++ = from[c];
}

// Spreads adjacent pixels over rows, into the same column of each row.
template <std::size_t CHANNELS>
void spread(const std::uint8_t *from, std::ptrdiff_t step, std::size_t count, std::uint8_t *out,
            std::size_t row_bytes) noexcept {
    for (; count != 0; --count, from += step, out += row_bytes)
        for (std::size_t c = 0; c < CHANNELS; ++c) out[c] = from[c];
}

}  // namespace

UprightPicture::UprightPicture(int orientation, std::uint32_t height, std::uint32_t width,
                               std::size_t channels) noexcept
    : height_(height),
      width_(width),
      channels_(channels),
      transposed_(is_stored_transposed(orientation)),
      from_right_(is_stored_from_right(orientation)),
      from_bottom_(is_stored_from_bottom(orientation)) {}

UprightPicture::~UprightPicture() { memory().trim(); }

std::uint64_t UprightPicture::nbytes(std::uint32_t height, std::uint32_t width, std::size_t channels) noexcept {
    return (std::uint64_t{height} + ROWS_AT_ONCE) * width * channels;
}

bool UprightPicture::prepare() noexcept {
    pixels_ = memory().reserve(static_cast<std::size_t>(nbytes(height_, width_, channels_)) + RowMemory::SLACK);
    if (!pixels_) return false;
    rows_ = pixels_ + std::size_t{height_} * width_ * channels_;
    return true;
}

// Makes rows that are stored as columns: pixel x of row y is pixel y of the stored row x, both counted from the other
// end if the orientation reverses them.
void UprightPicture::make_rows(std::uint32_t first, std::uint32_t count) noexcept {
    const std::size_t row_bytes = width_ * channels_;
    const std::ptrdiff_t pixel = static_cast<std::ptrdiff_t>(channels_), step = from_bottom_ ? -pixel : pixel;
    const std::size_t column = from_bottom_ ? height_ - 1 - first : first;
    for (std::uint32_t x = 0; x < width_; ++x) {
        const std::uint8_t *const from = place(from_right_ ? width_ - 1 - x : x) + column * channels_;
        std::uint8_t *const out = rows_ + x * channels_;
        if (channels_ == 3) {
            spread<3>(from, step, count, out, row_bytes);
        } else {
            spread<1>(from, step, count, out, row_bytes);
        }
    }
}

void UprightPicture::hand_on(RowReceiver &receiver) noexcept {
    const PixelBox box = receiver.box(height_, width_);
    const std::size_t row_bytes = width_ * channels_;
    for (std::uint32_t at = box.top; at < box.top + box.height;) {
        const std::uint32_t most = transposed_ ? ROWS_AT_ONCE : 1;
        const std::uint32_t count = std::min(most, box.top + box.height - at);
        const std::uint8_t *row = rows_;
        if (transposed_) {
            make_rows(at, count);
        } else {
            row = place(from_bottom_ ? height_ - 1 - at : at);
            if (from_right_) {
                const std::uint8_t *const last = row + row_bytes - channels_;
                if (channels_ == 3) {
                    gather<3>(last, -3, width_, rows_);
                } else {
                    gather<1>(last, -1, width_, rows_);
                }
                row = rows_;
            }
        }
        for (std::uint32_t i = 0; i < count; ++i, ++at, row += row_bytes) {
            std::uint8_t *const wanted = receiver.place(at);
            if (wanted) std::copy(row, row + row_bytes, wanted);
            receiver.take(at, wanted ? wanted : row);
        }
    }
}

}  // namespace ksrv
