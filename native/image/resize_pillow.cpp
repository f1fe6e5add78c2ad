#include "image/resize_pillow.hpp"

#include <cmath>
#include <cstring>
#include <initializer_list>

#include "base/cpu_dispatch.hpp"

// Vectors are passed between functions that are always inlined: no calling convention is involved.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"

namespace ksrv {

namespace {

using u8x16 = std::uint8_t __attribute__((vector_size(16)));
using i32x8 = std::int32_t __attribute__((vector_size(32)));

constexpr int PRECISION = 22;
constexpr std::size_t LANES = 16;      // rows that the horizontal pass takes at once
constexpr std::size_t SUM_LANES = 8;   // sums in one vector: what 256-bit registers hold

// The weights of one axis: output i reads `count[i]` inputs from `first[i]` on.
struct Axis {
    std::size_t outputs = 0, taps = 0;
    std::int32_t *first = nullptr, *count = nullptr, *weight = nullptr;  // weight[i * taps + tap]
};

std::size_t most_taps(std::size_t input, std::size_t output) noexcept {
    const double scale = static_cast<double>(input) / static_cast<double>(output);
    return 2 * static_cast<std::size_t>(std::ceil(scale < 1.0 ? 1.0 : scale)) + 1;
}

// Fills `axis` for the outputs [start, start + axis.outputs) of a resize from `input` to `output`.
void make_axis(Axis *axis, std::size_t input, std::size_t output, std::size_t start,
               double *weights) noexcept {
    const double scale = static_cast<double>(input) / static_cast<double>(output);
    const double support = scale < 1.0 ? 1.0 : scale, inverse = 1.0 / support;
    for (std::size_t i = 0; i < axis->outputs; ++i) {
        const double center = (static_cast<double>(start + i) + 0.5) * scale;
        std::int64_t first = static_cast<std::int64_t>(center - support + 0.5);
        std::int64_t last = static_cast<std::int64_t>(center + support + 0.5);
        if (first < 0) first = 0;
        if (last > static_cast<std::int64_t>(input)) last = static_cast<std::int64_t>(input);
        double sum = 0.0;
        for (std::int64_t tap = 0; tap < last - first; ++tap) {
            const double distance =
                std::fabs((static_cast<double>(tap + first) - center + 0.5) * inverse);
            weights[tap] = distance < 1.0 ? 1.0 - distance : 0.0;
            sum += weights[tap];
        }
        for (std::int64_t tap = 0; tap < last - first; ++tap) {
            const double weight = sum != 0.0 ? weights[tap] / sum : weights[tap];
            axis->weight[i * axis->taps + static_cast<std::size_t>(tap)] =
                static_cast<std::int32_t>(0.5 + weight * (1 << PRECISION));
        }
        axis->first[i] = static_cast<std::int32_t>(first);
        axis->count[i] = static_cast<std::int32_t>(last - first);
    }
}

struct Span {
    std::size_t first, count;
};

// The inputs that the outputs of an axis read.
Span reach(const Axis &axis) noexcept {
    const std::size_t last = axis.outputs - 1, first = static_cast<std::size_t>(axis.first[0]);
    return {first, static_cast<std::size_t>(axis.first[last] + axis.count[last]) - first};
}

// Sums of 8 * COUNT neighbouring bytes, kept in registers. The pragmas unroll before registers are
// assigned; the loops over plain arrays are the form in which gcc recognises widening conversions.
template <std::size_t COUNT>
struct Sums {
    i32x8 sum[COUNT];

    KSRV_INLINE void clear() noexcept {
#pragma GCC unroll 8
        for (std::size_t i = 0; i < COUNT; ++i) sum[i] = i32x8{} + (1 << (PRECISION - 1));
    }
    KSRV_INLINE void add(const std::uint8_t *bytes, std::int32_t weight) noexcept {
#pragma GCC unroll 8
        for (std::size_t i = 0; i < COUNT; ++i) {
            std::int32_t wide[SUM_LANES];
            for (std::size_t j = 0; j < SUM_LANES; ++j) wide[j] = bytes[i * SUM_LANES + j];
            i32x8 values;
            std::memcpy(&values, wide, sizeof values);
            sum[i] += values * weight;
        }
    }
    KSRV_INLINE void store(std::uint8_t *bytes) const noexcept {
        std::int32_t wide[COUNT * SUM_LANES];
        std::memcpy(wide, sum, sizeof wide);
        for (std::size_t j = 0; j < COUNT * SUM_LANES; ++j) {
            const std::int32_t value = wide[j] >> PRECISION;
            bytes[j] = static_cast<std::uint8_t>(value > 255 ? 255 : value);
        }
    }
};

// The bytes of two vectors in turn, from their lower or their upper halves.
#if defined(__clang__) || __GNUC__ >= 12
KSRV_INLINE u8x16 interleave_low(u8x16 a, u8x16 b) noexcept {
    return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}
KSRV_INLINE u8x16 interleave_high(u8x16 a, u8x16 b) noexcept {
    return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15,
                                   31);
}
#else
KSRV_INLINE u8x16 interleave_low(u8x16 a, u8x16 b) noexcept {
    const u8x16 order = {0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23};
    return __builtin_shuffle(a, b, order);
}
KSRV_INLINE u8x16 interleave_high(u8x16 a, u8x16 b) noexcept {
    const u8x16 order = {8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    return __builtin_shuffle(a, b, order);
}
#endif

// Sixteen rows of sixteen bytes, mirrored at the diagonal.
KSRV_INLINE void transpose_16x16(u8x16 (&rows)[LANES]) noexcept {
    u8x16 next[LANES];
    for (int stage = 0; stage < 4; ++stage) {
        for (std::size_t i = 0; i < LANES / 2; ++i) {
            next[2 * i] = interleave_low(rows[i], rows[i + LANES / 2]);
            next[2 * i + 1] = interleave_high(rows[i], rows[i + LANES / 2]);
        }
        for (std::size_t i = 0; i < LANES; ++i) rows[i] = next[i];
    }
}

// `rows` rows (at most 16) of `length` bytes become `length` groups of sixteen bytes.
KSRV_INLINE void gather_rows(const std::uint8_t *source, std::ptrdiff_t row_bytes, std::size_t rows,
                             std::size_t length, std::uint8_t *groups) noexcept {
    const std::uint8_t *row[LANES];
    for (std::size_t r = 0; r < LANES; ++r)  // missing rows repeat the last; their result is not read
        row[r] = source + row_bytes * static_cast<std::ptrdiff_t>(r < rows ? r : rows - 1);
    std::size_t x = 0;
    u8x16 tile[LANES];
    for (; x + LANES <= length; x += LANES) {
        for (std::size_t r = 0; r < LANES; ++r) std::memcpy(&tile[r], row[r] + x, LANES);
        transpose_16x16(tile);
        std::memcpy(groups + x * LANES, tile, sizeof tile);
    }
    for (; x < length; ++x)
        for (std::size_t r = 0; r < LANES; ++r) groups[x * LANES + r] = row[r][x];
}

KSRV_INLINE void scatter_rows(const std::uint8_t *groups, std::size_t length, std::size_t rows,
                              std::uint8_t *target, std::ptrdiff_t row_bytes) noexcept {
    std::size_t x = 0;
    u8x16 tile[LANES];
    for (; x + LANES <= length; x += LANES) {
        std::memcpy(tile, groups + x * LANES, sizeof tile);
        transpose_16x16(tile);
        for (std::size_t r = 0; r < rows; ++r)
            std::memcpy(target + row_bytes * static_cast<std::ptrdiff_t>(r) + x, &tile[r], LANES);
    }
    for (; x < length; ++x)
        for (std::size_t r = 0; r < rows; ++r)
            target[row_bytes * static_cast<std::ptrdiff_t>(r) + static_cast<std::ptrdiff_t>(x)] =
                groups[x * LANES + r];
}

template <std::size_t CHANNELS>
KSRV_INLINE void horizontal_groups(const std::uint8_t *groups, std::uint8_t *results,
                                   const Axis &axis, std::size_t origin) noexcept {
    for (std::size_t i = 0; i < axis.outputs; ++i) {
        const std::int32_t *weight = axis.weight + i * axis.taps;
        const std::size_t first = static_cast<std::size_t>(axis.first[i]) - origin;
        const std::uint8_t *from = groups + first * CHANNELS * LANES;
        Sums<2 * CHANNELS> sums;
        sums.clear();
        for (std::int32_t tap = 0; tap < axis.count[i]; ++tap, from += CHANNELS * LANES)
            sums.add(from, weight[tap]);
        sums.store(results + i * CHANNELS * LANES);
    }
}

// Rows of `source`, which begin where the first output reads, become rows of `target`; `groups` and
// `results` are scratch.
KSRV_CLONES
static void horizontal_pass(const std::uint8_t *source, std::ptrdiff_t source_bytes,
                            std::size_t rows, std::size_t channels, const Axis &axis,
                            std::uint8_t *target, std::ptrdiff_t target_bytes,
                            std::uint8_t *groups, std::uint8_t *results) noexcept {
    const Span columns = reach(axis);
    const std::size_t length = columns.count * channels;
    for (std::size_t y = 0; y < rows; y += LANES) {
        const std::size_t here = rows - y < LANES ? rows - y : LANES;
        gather_rows(source + source_bytes * static_cast<std::ptrdiff_t>(y), source_bytes, here,
                    length, groups);
        switch (channels) {
            case 1: horizontal_groups<1>(groups, results, axis, columns.first); break;
            case 2: horizontal_groups<2>(groups, results, axis, columns.first); break;
            case 3: horizontal_groups<3>(groups, results, axis, columns.first); break;
            default: horizontal_groups<4>(groups, results, axis, columns.first); break;
        }
        scatter_rows(results, axis.outputs * channels, here,
                     target + target_bytes * static_cast<std::ptrdiff_t>(y), target_bytes);
    }
}

// Row i of `target` is the weighted sum of rows of `source`, whose row 0 is input row `origin`.
KSRV_CLONES
static void vertical_pass(const std::uint8_t *source, std::ptrdiff_t source_bytes,
                          std::size_t length, const Axis &axis, std::size_t origin,
                          std::uint8_t *target, std::ptrdiff_t target_bytes) noexcept {
    constexpr std::size_t TILE = 8;
    for (std::size_t i = 0; i < axis.outputs; ++i) {
        const std::int32_t *weight = axis.weight + i * axis.taps;
        const std::ptrdiff_t first = axis.first[i] - static_cast<std::ptrdiff_t>(origin);
        const std::uint8_t *rows = source + source_bytes * first;
        std::uint8_t *out = target + target_bytes * static_cast<std::ptrdiff_t>(i);
        std::size_t x = 0;
        for (; x + TILE * SUM_LANES <= length; x += TILE * SUM_LANES) {
            Sums<TILE> sums;
            sums.clear();
            const std::uint8_t *from = rows + x;
            for (std::int32_t tap = 0; tap < axis.count[i]; ++tap, from += source_bytes)
                sums.add(from, weight[tap]);
            sums.store(out + x);
        }
        for (; x < length; ++x) {
            std::int32_t sum = 1 << (PRECISION - 1);
            const std::uint8_t *from = rows + x;
            for (std::int32_t tap = 0; tap < axis.count[i]; ++tap, from += source_bytes)
                sum += *from * weight[tap];
            sum >>= PRECISION;
            out[x] = static_cast<std::uint8_t>(sum > 255 ? 255 : sum);
        }
    }
}

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

// Hands out pieces of one scratch block, each aligned to 64 bytes; measures when it has no block.
struct Scratch {
    unsigned char *data = nullptr;
    std::size_t used = 0;
    template <typename T>
    T *take(std::size_t count) noexcept {
        T *piece = data != nullptr ? reinterpret_cast<T *>(data + used) : nullptr;
        used += (count * sizeof(T) + 63) & ~std::size_t{63};
        return piece;
    }
};

// Which pass Pillow (13 and later) runs first; the rounding between the passes makes it visible.
bool vertical_first(const Resample &job) noexcept {
    const auto less_height = static_cast<std::int64_t>(job.height) -
                             static_cast<std::int64_t>(job.full_height);
    const auto less_width = static_cast<std::int64_t>(job.width) -
                            static_cast<std::int64_t>(job.full_width);
    return less_height > 0 && less_height > 2 * less_width;
}

}  // namespace

std::size_t resample_pillow(const Resample &job, const std::uint8_t *source,
                            std::ptrdiff_t source_bytes, std::uint8_t *target,
                            std::ptrdiff_t target_bytes, unsigned char *scratch) noexcept {
    Scratch pieces{scratch};
    const bool horizontal = job.full_width != job.width, vertical = job.full_height != job.height;
    const bool alpha = job.alpha && job.channels == 4 && (horizontal || vertical);

    const std::size_t row = job.out_width * job.channels;
    Axis across, down;
    across.taps = most_taps(job.width, job.full_width);
    down.taps = most_taps(job.height, job.full_height);
    across.outputs = job.out_width;
    down.outputs = job.out_height;
    for (Axis *axis : {&across, &down}) {
        axis->first = pieces.take<std::int32_t>(axis->outputs);
        axis->count = pieces.take<std::int32_t>(axis->outputs);
        axis->weight = pieces.take<std::int32_t>(axis->outputs * axis->taps);
    }
    double *weights = pieces.take<double>(across.taps > down.taps ? across.taps : down.taps);
    std::uint8_t *groups = pieces.take<std::uint8_t>(job.width * job.channels * LANES);
    std::uint8_t *results = pieces.take<std::uint8_t>(row * LANES);
    const bool both = horizontal && vertical, down_first = both && vertical_first(job);
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
    // The part of the source that the window needs: the rest is not touched.
    const Span rows = vertical ? reach(down) : Span{job.top, job.out_height};
    const Span columns = horizontal ? reach(across) : Span{job.left, job.out_width};
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

#pragma GCC diagnostic pop
