#include "images/resize/pillow/rows.hpp"

#include <algorithm>
#include <cstring>

#include "base/cpu_dispatch.hpp"
#include "images/decode/row_memory.hpp"

namespace ksrv {

namespace {

// As in Pillow, pictures with alpha are multiplied by alpha before the resize and divided by it after.
KSRV_CLONES
void multiply_by_alpha(std::uint8_t *pixels, std::size_t count) noexcept {
    for (std::size_t i = 0; i < count; ++i) {
        const std::uint32_t alpha = pixels[4 * i + 3];
        for (std::size_t c = 0; c < 3; ++c) {
            const std::uint32_t product = pixels[4 * i + c] * alpha + 128;
            pixels[4 * i + c] = static_cast<std::uint8_t>(((product >> 8) + product) >> 8);
        }
    }
}

void divide_by_alpha(std::uint8_t *pixels, std::size_t count) noexcept {
    for (std::size_t i = 0; i < count; ++i) {
        const std::uint32_t alpha = pixels[4 * i + 3];
        if (alpha == 0 || alpha == 255) continue;
        for (std::size_t c = 0; c < 3; ++c) {
            const std::uint32_t value = 255u * pixels[4 * i + c] / alpha;
            pixels[4 * i + c] = static_cast<std::uint8_t>(value > 255 ? 255 : value);
        }
    }
}

// Whether Pillow (13 and later) resizes in height first. The order matters, because it rounds between the passes.
bool resizes_height_first(const ResizeWindow &window) noexcept {
    const auto less_height = static_cast<std::int64_t>(window.height) - static_cast<std::int64_t>(window.full_height);
    const auto less_width = static_cast<std::int64_t>(window.width) - static_cast<std::int64_t>(window.full_width);
    return less_width != 0 && less_height > 0 && less_height > 2 * less_width;
}

}  // namespace

PillowRows::PillowRows(const ResizeWindow &window, const PixelTarget &target,
                       const Coefficients &coefficients) noexcept
    : window_(window), row_bytes_(window.out_width * window.channels),
      rows_out_(window, PIXEL_U8, target, coefficients),
      columns_{window.left, window.out_width}, rows_{window.top, window.out_height},
      height_first_(resizes_height_first(window)) {}

// Divides the scratch memory at `data` among the members. Returns the bytes that they need. With null, only measures.
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
    kept_room_ = 2 * (down_.taps + LANES);
    kept_ = pieces.take<std::uint8_t>((height_first_ ? source_row : row_bytes_) * kept_room_);
    if (height_first_) {
        lowered_ = pieces.take<std::uint8_t>(source_row * LANES);
        narrowed_ = pieces.take<std::uint8_t>(row_bytes_ * LANES);
    }
    rows_out_.use(pieces.take<std::uint8_t>(rows_out_.nbytes()));
    return pieces.used;
}

bool PillowRows::prepare() noexcept {
    unsigned char *const data = reserve_rows<PillowRows>(lay_out(nullptr));
    if (!data) return false;
    lay_out(data);
    pillow::make_axis(&across_, window_.width, window_.full_width, window_.left, weights_);
    pillow::make_axis(&down_, window_.height, window_.full_height, window_.top, weights_);
    if (window_.full_width != window_.width) columns_ = pillow::reach(across_);
    if (window_.full_height != window_.height) rows_ = pillow::reach(down_);
    kept_first_ = rows_.first;
    source_bytes_ = columns_.count * window_.channels;
    kept_bytes_ = height_first_ ? source_bytes_ : row_bytes_;
    return true;
}

void PillowRows::take(std::uint32_t row, const std::uint8_t *pixels) noexcept {
    if (row < rows_.first || row >= rows_.first + rows_.count) return;
    std::uint8_t *const collected = collected_ + collected_count_ * source_bytes_;
    std::memcpy(collected, pixels + columns_.first * window_.channels, source_bytes_);
    if (window_.channels == 4) multiply_by_alpha(collected, columns_.count);
    ++collected_count_;
    if (collected_count_ < pillow::LANES && row + 1 < rows_.first + rows_.count) return;
    keep_collected();
    make_rows();
}

void PillowRows::resize_across(const std::uint8_t *source, std::size_t count, std::uint8_t *target) noexcept {
    pillow::horizontal_pass(source, static_cast<std::ptrdiff_t>(source_bytes_), count, window_.channels, across_,
                            target, static_cast<std::ptrdiff_t>(row_bytes_), groups_, results_);
}

// Moves the collected rows to the kept rows, resized in width unless `height_first_`.
void PillowRows::keep_collected() noexcept {
    if (kept_count_ + collected_count_ > kept_room_) {
        const std::size_t needed = static_cast<std::size_t>(down_.first[next_]);
        const std::size_t dropped = std::min(needed - kept_first_, kept_count_);
        kept_count_ -= dropped;
        kept_first_ += dropped;
        std::memmove(kept_, kept_ + dropped * kept_bytes_, kept_count_ * kept_bytes_);
    }
    std::uint8_t *const target = kept_ + kept_count_ * kept_bytes_;
    if (height_first_ || window_.full_width == window_.width)
        std::memcpy(target, collected_, collected_count_ * source_bytes_);
    else
        resize_across(collected_, collected_count_, target);
    kept_count_ += collected_count_;
    collected_count_ = 0;
}

// Computes the rows of the result for which all source rows have arrived.
void PillowRows::make_rows() noexcept {
    const bool copied = window_.full_height == window_.height;
    for (; next_ < window_.out_height; ++next_) {
        const std::size_t first = copied ? window_.top + next_ : static_cast<std::size_t>(down_.first[next_]);
        const std::size_t count = copied ? 1 : static_cast<std::size_t>(down_.count[next_]);
        if (first + count > kept_first_ + kept_count_) return;
        std::uint8_t *const out =
            height_first_ ? lowered_ + next_ % pillow::LANES * kept_bytes_ : rows_out_.place(next_);
        if (copied) {
            std::memcpy(out, kept_ + (first - kept_first_) * kept_bytes_, kept_bytes_);
        } else {
            pillow::Axis row = down_;
            row.outputs = 1;
            row.first += next_, row.count += next_, row.weight += next_ * down_.taps;
            pillow::vertical_pass(kept_, static_cast<std::ptrdiff_t>(kept_bytes_), kept_bytes_, row, kept_first_, out,
                                  0);
        }
        if (!height_first_)
            finish(next_);
        else if ((next_ + 1) % pillow::LANES == 0 || next_ + 1 == window_.out_height)
            finish_lowered();
    }
}

// Resizes the rows in `lowered_` in width, and finishes them. The last row is row `next_` of the result.
void PillowRows::finish_lowered() noexcept {
    const std::size_t first = next_ / pillow::LANES * pillow::LANES, end = next_ + 1;
    resize_across(lowered_, end - first, narrowed_);
    for (std::size_t y = first; y < end; ++y) {
        std::memcpy(rows_out_.place(y), narrowed_ + (y - first) * row_bytes_, row_bytes_);
        finish(y);
    }
}

// Row `y` of the result is resized.
void PillowRows::finish(std::size_t y) noexcept {
    if (window_.channels == 4) divide_by_alpha(rows_out_.place(y), window_.out_width);
    rows_out_.done(y);
}

}  // namespace ksrv
