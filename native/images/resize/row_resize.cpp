#include "images/resize/row_resize.hpp"

#include <cstring>
#include <new>

#include "images/decode/row_memory.hpp"
#include "images/resize/area.hpp"
#include "images/resize/linear.hpp"
#include "images/resize/pillow/rows.hpp"
#include "images/resize/result_rows.hpp"

namespace ksrv {
namespace {

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
        : window_(window), rows_out_(window, PIXEL_U8, target, coefficients) {}

    bool prepare() noexcept override {
        std::uint8_t *const rows = reserve_rows<RowCopies>(rows_out_.nbytes());
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
    ResultRows rows_out_;
};

}  // namespace

bool resizes_by_rows(ResizeKind kind, const ResizeWindow &window) noexcept {
    if (kind != ResizeKind::area) return true;
    const bool shrinks = window.full_height <= window.height && window.full_width <= window.width;
    return shrinks && (window.height % window.full_height != 0 || window.width % window.full_width != 0);
}

std::unique_ptr<RowResize> make_row_resize(ResizeKind kind, const ResizeWindow &window, int sample,
                                           const PixelTarget &target,
                                           const Coefficients &coefficients) noexcept {
    if (keeps_size(window) && sample == PIXEL_U8) return make<RowCopies>(window, target, coefficients);
    if (kind == ResizeKind::linear_floats)
        return make<LinearResize<float>>(window, sample, target, coefficients);
    if (kind == ResizeKind::linear_bytes)
        return make<LinearResize<std::int16_t>>(window, sample, target, coefficients);
    if (kind == ResizeKind::area) return make<AreaResize>(window, target, coefficients);
    return make<PillowRows>(window, target, coefficients);
}

}  // namespace ksrv
