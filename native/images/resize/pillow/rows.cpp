#include "images/resize/pillow/rows.hpp"

#include <algorithm>
#include <cstring>

#include "images/decode/row_memory.hpp"

namespace ksrv {

std::size_t PillowRows::lay_out(unsigned char *data) noexcept {
    using pillow::LANES;
    pillow::Scratch pieces{data};
    across_ = pieces.axis(window_.out_width, window_.width, window_.full_width);
    down_ = pieces.axis(window_.out_height, window_.height, window_.full_height);
    weights_ = pieces.take<double>(std::max(across_.taps, down_.taps));
    const std::size_t source_row = window_.width * window_.channels;
    collected_ = pieces.take<std::uint8_t>(source_row * LANES);
    groups_ = pieces.take<std::uint8_t>(source_row * LANES);
    results_ = pieces.take<std::uint8_t>(row_bytes_ * LANES);
    // Twice the rows that a row of the result needs, so that rows are rarely moved.
    kept_most_ = 2 * (down_.taps + LANES);
    kept_ = pieces.take<std::uint8_t>(row_bytes_ * kept_most_);
    rows_out_.use(pieces.take<std::uint8_t>(rows_out_.nbytes()));
    return pieces.used;
}

bool PillowRows::prepare() noexcept {
    unsigned char *const data = row_memory<PillowRows>().reserve(lay_out(nullptr));
    if (!data) return false;
    lay_out(data);
    pillow::make_axis(&across_, window_.width, window_.full_width, window_.left, weights_);
    pillow::make_axis(&down_, window_.height, window_.full_height, window_.top, weights_);
    if (window_.full_width != window_.width) columns_ = pillow::reach(across_);
    if (window_.full_height != window_.height) rows_ = pillow::reach(down_);
    kept_first_ = rows_.first;
    return true;
}

void PillowRows::take(std::uint32_t row, const std::uint8_t *pixels) noexcept {
    if (row < rows_.first || row >= rows_.first + rows_.count) return;
    const std::size_t length = columns_.count * window_.channels;
    std::memcpy(collected_ + collected_count_ * length, pixels + columns_.first * window_.channels, length);
    ++collected_count_;
    if (collected_count_ < pillow::LANES && row + 1 < rows_.first + rows_.count) return;
    resize_collected();
    make_rows();
}

void PillowRows::resize_collected() noexcept {
    if (kept_count_ + collected_count_ > kept_most_) {
        const std::size_t needed = static_cast<std::size_t>(down_.first[next_]);
        const std::size_t dropped = std::min(needed - kept_first_, kept_count_);
        kept_count_ -= dropped;
        kept_first_ += dropped;
        std::memmove(kept_, kept_ + dropped * row_bytes_, kept_count_ * row_bytes_);
    }
    std::uint8_t *const target = kept_ + kept_count_ * row_bytes_;
    const std::size_t length = columns_.count * window_.channels;
    if (window_.full_width == window_.width)
        std::memcpy(target, collected_, collected_count_ * length);
    else
        pillow::horizontal_pass(collected_, static_cast<std::ptrdiff_t>(length), collected_count_,
                                window_.channels, across_, target,
                                static_cast<std::ptrdiff_t>(row_bytes_), groups_, results_);
    kept_count_ += collected_count_;
    collected_count_ = 0;
}

void PillowRows::make_rows() noexcept {
    const bool copied = window_.full_height == window_.height;
    for (; next_ < window_.out_height; ++next_) {
        const std::size_t first = copied ? window_.top + next_ : static_cast<std::size_t>(down_.first[next_]);
        const std::size_t count = copied ? 1 : static_cast<std::size_t>(down_.count[next_]);
        if (first + count > kept_first_ + kept_count_) return;
        std::uint8_t *const out = rows_out_.place(next_);
        if (copied) {
            std::memcpy(out, kept_ + (first - kept_first_) * row_bytes_, row_bytes_);
        } else {
            pillow::Axis one = down_;
            one.outputs = 1;
            one.first += next_, one.count += next_, one.weight += next_ * down_.taps;
            pillow::vertical_pass(kept_, static_cast<std::ptrdiff_t>(row_bytes_), row_bytes_, one,
                                  kept_first_, out, 0);
        }
        rows_out_.done(next_);
    }
}

}  // namespace ksrv
