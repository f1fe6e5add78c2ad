#include "images/resize/pillow/pictures.hpp"

#include <cstring>

#include "base/cpu_dispatch.hpp"
#include "images/resize/pillow/passes.hpp"

namespace ksrv {

namespace {

KSRV_CLONES
static void multiply_by_alpha(const std::uint8_t *source, std::uint8_t *target,
                              std::size_t pixels) noexcept {
    for (std::size_t i = 0; i < pixels; ++i) {
        const std::uint32_t alpha = source[4 * i + 3];
        for (std::size_t c = 0; c < 3; ++c) {
            const std::uint32_t product = source[4 * i + c] * alpha + 128;
            target[4 * i + c] = static_cast<std::uint8_t>(((product >> 8) + product) >> 8);
        }
        target[4 * i + 3] = static_cast<std::uint8_t>(alpha);
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

}  // namespace

// Whether Pillow (13 and later) resizes in height first. The order matters, because it rounds between the passes.
bool pillow_goes_down_first(const ResizeWindow &job) noexcept {
    const auto less_height = static_cast<std::int64_t>(job.height) -
                             static_cast<std::int64_t>(job.full_height);
    const auto less_width = static_cast<std::int64_t>(job.width) -
                            static_cast<std::int64_t>(job.full_width);
    const bool both = job.full_height != job.height && job.full_width != job.width;
    return both && less_height > 0 && less_height > 2 * less_width;
}

std::size_t resample_pillow(const ResizeWindow &job, const std::uint8_t *source,
                            std::ptrdiff_t source_bytes, std::uint8_t *target,
                            std::ptrdiff_t target_bytes, unsigned char *scratch) noexcept {
    using namespace pillow;
    Scratch pieces{scratch};
    const bool horizontal = job.full_width != job.width, vertical = job.full_height != job.height;
    const bool alpha = job.channels == 4 && (horizontal || vertical);

    const std::size_t row = job.out_width * job.channels;
    Axis across = pieces.axis(job.out_width, job.width, job.full_width);
    Axis down = pieces.axis(job.out_height, job.height, job.full_height);
    double *weights = pieces.take<double>(across.taps > down.taps ? across.taps : down.taps);
    std::uint8_t *groups = pieces.take<std::uint8_t>(job.width * job.channels * LANES);
    std::uint8_t *results = pieces.take<std::uint8_t>(row * LANES);
    const bool both = horizontal && vertical, down_first = pillow_goes_down_first(job);
    std::uint8_t *between = pieces.take<std::uint8_t>(
        !both ? 0 : down_first ? job.out_height * job.width * job.channels : job.height * row);
    std::uint8_t *premultiplied = pieces.take<std::uint8_t>(alpha ? job.height * job.width * 4 : 0);
    if (scratch == nullptr) return pieces.used;

    if (alpha) {
        for (std::size_t y = 0; y < job.height; ++y)
            multiply_by_alpha(source + source_bytes * static_cast<std::ptrdiff_t>(y),
                              premultiplied + y * job.width * 4, job.width);
        source = premultiplied;
        source_bytes = static_cast<std::ptrdiff_t>(job.width * 4);
    }
    make_axis(&across, job.width, job.full_width, job.left, weights);
    make_axis(&down, job.height, job.full_height, job.top, weights);
    // The source rows that the window needs. Other rows are not read.
    const Lines rows = vertical ? reach(down) : Lines{job.top, job.out_height};
    const Lines columns = horizontal ? reach(across) : Lines{job.left, job.out_width};
    source += source_bytes * static_cast<std::ptrdiff_t>(rows.first) + columns.first * job.channels;
    if (down_first) {
        const std::size_t wide = columns.count * job.channels;
        vertical_pass(source, source_bytes, wide, down, rows.first, between,
                      static_cast<std::ptrdiff_t>(wide));
        horizontal_pass(between, static_cast<std::ptrdiff_t>(wide), job.out_height, job.channels,
                        across, target, target_bytes, groups, results);
    } else if (both) {
        horizontal_pass(source, source_bytes, rows.count, job.channels, across, between,
                        static_cast<std::ptrdiff_t>(row), groups, results);
        vertical_pass(between, static_cast<std::ptrdiff_t>(row), row, down, rows.first, target,
                      target_bytes);
    } else if (horizontal) {
        horizontal_pass(source, source_bytes, rows.count, job.channels, across, target,
                        target_bytes, groups, results);
    } else if (vertical) {
        vertical_pass(source, source_bytes, row, down, rows.first, target, target_bytes);
    } else {
        for (std::size_t y = 0; y < job.out_height; ++y)
            std::memcpy(target + target_bytes * static_cast<std::ptrdiff_t>(y),
                        source + source_bytes * static_cast<std::ptrdiff_t>(y), row);
    }
    if (alpha)
        for (std::size_t y = 0; y < job.out_height; ++y)
            divide_by_alpha(target + target_bytes * static_cast<std::ptrdiff_t>(y), job.out_width);
    return pieces.used;
}

}  // namespace ksrv
