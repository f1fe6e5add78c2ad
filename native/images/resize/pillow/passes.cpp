#include "images/resize/pillow/passes.hpp"

#include <cmath>
#include <cstring>

#include "base/cpu_dispatch.hpp"

// These functions pass vectors by value but are always inlined, so that the calling convention does not matter.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"

namespace ksrv::pillow {

namespace {

using u8x16 = std::uint8_t __attribute__((vector_size(16)));
using i32x8 = std::int32_t __attribute__((vector_size(32)));

constexpr int PRECISION = 22;          // fractional bits of a weight
constexpr std::size_t SUM_LANES = 8;   // sums in one 256-bit vector register

// Weighted sums of 8 * COUNT neighbouring bytes, kept in registers. The pragmas unroll the loops before registers are
// assigned. `wide` is a plain array because gcc recognises widening conversions only in loops over plain arrays.
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

// Interleaves the bytes of the lower or upper halves of two vectors.
#if defined(__clang__) || __GNUC__ >= 12
KSRV_INLINE u8x16 interleave_low(u8x16 a, u8x16 b) noexcept {
    return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}
KSRV_INLINE u8x16 interleave_high(u8x16 a, u8x16 b) noexcept {
    return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
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

// Transposes sixteen rows of sixteen bytes.
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

// Regroups `rows` (at most 16) rows of `length` bytes into `length` groups of sixteen bytes, a column each.
KSRV_INLINE void gather_rows(const std::uint8_t *source, std::ptrdiff_t row_bytes, std::size_t rows,
                             std::size_t length, std::uint8_t *groups) noexcept {
    const std::uint8_t *row[LANES];
    for (std::size_t r = 0; r < LANES; ++r)  // missing rows repeat the last row; their results are not used
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

// The reverse of `gather_rows`.
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

// Computes the columns of the result from the columns of the source, for sixteen rows at once. The first group of
// `groups` is source column `origin`.
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

}  // namespace

std::size_t most_taps(std::size_t input, std::size_t output) noexcept {
    const double scale = static_cast<double>(input) / static_cast<double>(output);
    return 2 * static_cast<std::size_t>(std::ceil(scale < 1.0 ? 1.0 : scale)) + 1;
}

// As Pillow's precompute_coeffs (Resample.c).
void make_axis(Axis *axis, std::size_t input, std::size_t output, std::size_t start, double *weights) noexcept {
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
            const double distance = std::fabs((static_cast<double>(tap + first) - center + 0.5) * inverse);
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

Lines reach(const Axis &axis) noexcept {
    const std::size_t last = axis.outputs - 1, first = static_cast<std::size_t>(axis.first[0]);
    return {first, static_cast<std::size_t>(axis.first[last] + axis.count[last]) - first};
}

KSRV_CLONES
void horizontal_pass(const std::uint8_t *source, std::ptrdiff_t source_bytes,
                            std::size_t rows, std::size_t channels, const Axis &axis,
                            std::uint8_t *target, std::ptrdiff_t target_bytes,
                            std::uint8_t *groups, std::uint8_t *results) noexcept {
    const Lines columns = reach(axis);
    const std::size_t length = columns.count * channels;
    for (std::size_t y = 0; y < rows; y += LANES) {
        const std::size_t block = rows - y < LANES ? rows - y : LANES;
        gather_rows(source + source_bytes * static_cast<std::ptrdiff_t>(y), source_bytes, block, length, groups);
        switch (channels) {
            case 1: horizontal_groups<1>(groups, results, axis, columns.first); break;
            case 2: horizontal_groups<2>(groups, results, axis, columns.first); break;
            case 3: horizontal_groups<3>(groups, results, axis, columns.first); break;
            default: horizontal_groups<4>(groups, results, axis, columns.first); break;
        }
        scatter_rows(results, axis.outputs * channels, block,
                     target + target_bytes * static_cast<std::ptrdiff_t>(y), target_bytes);
    }
}

KSRV_CLONES
void vertical_pass(const std::uint8_t *source, std::ptrdiff_t source_bytes,
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

Axis Scratch::axis(std::size_t outputs, std::size_t input, std::size_t output) noexcept {
    Axis axis;
    axis.outputs = outputs;
    axis.taps = most_taps(input, output);
    axis.first = take<std::int32_t>(outputs);
    axis.count = take<std::int32_t>(outputs);
    axis.weight = take<std::int32_t>(outputs * axis.taps);
    return axis;
}

}  // namespace ksrv::pillow

#pragma GCC diagnostic pop
