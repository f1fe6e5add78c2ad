#include "images/resize/row_resize.hpp"

#include <algorithm>
#include <cstring>
#include <new>

#include "images/decode/row_memory.hpp"
#include "images/resize/area.hpp"
#include "images/resize/byte_rows.hpp"
#include "images/resize/linear_bytes.hpp"
#include "images/resize/linear_floats.hpp"
#include "images/resize/neighbours.hpp"
#include "images/resize/pillow/rows.hpp"

namespace ksrv {
namespace {

// The range of rows or columns that the results [start, start + count) need.
Lines linear_reach(std::size_t start, std::size_t count, std::size_t from, std::size_t to) noexcept {
    const auto last = static_cast<std::ptrdiff_t>(from) - 1;
    const auto inside = [last](std::ptrdiff_t at) { return std::clamp<std::ptrdiff_t>(at, 0, last); };
    const auto low = inside(between_neighbours(start, from, to).first);
    const auto high = inside(between_neighbours(start + count - 1, from, to).first + 1);
    return {static_cast<std::size_t>(low), static_cast<std::size_t>(high - low + 1)};
}

template <typename Resize, typename... Arguments>
std::unique_ptr<RowResize> make(const Arguments &...arguments) noexcept {
    return std::unique_ptr<RowResize>(new (std::nothrow) Resize(arguments...));
}

bool keeps_size(const ResizeWindow &window) noexcept {
    return window.full_height == window.height && window.full_width == window.width;
}

// Copies a window of a picture without resizing.
class RowCopies final : public RowResize {
  public:
    RowCopies(const ResizeWindow &window, const PixelTarget &target,
              const Coefficients &coefficients) noexcept
        : window_(window),
          rows_out_(target, coefficients, window.out_height, window.out_width, window.channels) {}

    bool prepare() noexcept override {
        std::uint8_t *const rows = row_memory<RowCopies>().reserve(rows_out_.nbytes());
        rows_out_.use(rows);
        return rows != nullptr;
    }
    void take(std::uint32_t row, const std::uint8_t *pixels) noexcept override {
        if (row < window_.top || row >= window_.top + window_.out_height) return;
        const std::size_t y = row - window_.top;
        std::memcpy(rows_out_.place(y), pixels + window_.left * window_.channels,
                    window_.out_width * window_.channels);
        rows_out_.done(y);
    }
    PixelBox box(std::uint32_t, std::uint32_t) const noexcept override {
        return {static_cast<std::uint32_t>(window_.top), static_cast<std::uint32_t>(window_.left),
                static_cast<std::uint32_t>(window_.out_height),
                static_cast<std::uint32_t>(window_.out_width)};
    }

  private:
    ResizeWindow window_;
    ByteRows rows_out_;
};

}  // namespace

PixelBox linear_box(const ResizeWindow &window) noexcept {
    const Lines rows = linear_reach(window.top, window.out_height, window.height, window.full_height);
    const Lines columns = linear_reach(window.left, window.out_width, window.width, window.full_width);
    return {static_cast<std::uint32_t>(rows.first), static_cast<std::uint32_t>(columns.first),
            static_cast<std::uint32_t>(rows.count), static_cast<std::uint32_t>(columns.count)};
}

bool resizes_by_rows(ResizeKind kind, const ResizeWindow &window) noexcept {
    return kind != ResizeKind::area || (window.full_height <= window.height && window.full_width <= window.width);
}

std::unique_ptr<RowResize> make_row_resize(ResizeKind kind, const ResizeWindow &window, int sample,
                                           const PixelTarget &target,
                                           const Coefficients &coefficients) noexcept {
    if (keeps_size(window) && sample == PIXEL_U8) return make<RowCopies>(window, target, coefficients);
    if (kind == ResizeKind::linear_floats)
        return make<LinearFloats>(window, sample, target, coefficients);
    if (kind == ResizeKind::linear_bytes) return make<LinearBytes>(window, target, coefficients);
    if (kind == ResizeKind::area) return make<AreaResize>(window, target, coefficients);
    return make<PillowRows>(window, target, coefficients);
}

}  // namespace ksrv
