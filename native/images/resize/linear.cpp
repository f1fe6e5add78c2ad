#include "images/resize/linear.hpp"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "base/cpu_dispatch.hpp"
#include "images/decode/row_memory.hpp"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define KSRV_AVX2 __attribute__((target("avx2")))
#endif

namespace ksrv {
namespace {

constexpr int WEIGHT_BITS = 11;
constexpr int DROPPED_BITS = 4;  // dropped from a value that is resized in width
constexpr std::size_t SLACK_VALUES = 16;  // after a row: the last store of a vector ends beyond the last pixel

template <typename Value> using Result = std::conditional_t<std::is_same_v<Value, float>, float, std::uint8_t>;

// The two source rows or columns between which a result is interpolated.
struct Neighbours {
    std::ptrdiff_t first;  // the second is the next; either may be outside of the picture
    float weight;          // of the second
};

// OpenCV's steps and precision, so that results are equal bit for bit.
Neighbours between_neighbours(std::size_t at, std::size_t from, std::size_t to) noexcept {
    const double scale = 1.0 / (static_cast<double>(to) / static_cast<double>(from));
    const float position = static_cast<float>((static_cast<double>(at) + 0.5) * scale - 0.5);
    const float below = std::floor(position);
    return {static_cast<std::ptrdiff_t>(below), position - below};
}

std::size_t inside(std::ptrdiff_t at, std::size_t size) noexcept {
    return static_cast<std::size_t>(std::clamp<std::ptrdiff_t>(at, 0, static_cast<std::ptrdiff_t>(size) - 1));
}

// The range of rows or columns that the results [start, start + count) need.
Lines linear_reach(std::size_t start, std::size_t count, std::size_t from, std::size_t to) noexcept {
    const std::size_t low = inside(between_neighbours(start, from, to).first, from);
    const std::size_t high = inside(between_neighbours(start + count - 1, from, to).first + 1, from);
    return {low, high - low + 1};
}

// A weight as OpenCV rounds it for bytes: to nearest even.
template <typename Value> Value weight_of(float weight) noexcept {
    if constexpr (std::is_same_v<Value, float>) return weight;
    else return static_cast<Value>(std::nearbyint(weight * static_cast<float>(1 << WEIGHT_BITS)));
}

template <typename Sample> float between(Sample left, Sample right, float left_weight, float right_weight) noexcept {
    return static_cast<float>(left) * left_weight + static_cast<float>(right) * right_weight;
}

template <typename Sample>
std::int16_t between(Sample left, Sample right, std::int16_t left_weight, std::int16_t right_weight) noexcept {
    return static_cast<std::int16_t>((left * left_weight + right * right_weight) >> DROPPED_BITS);
}

#ifdef KSRV_AVX2
// The left pixels of two columns and their right neighbours: eight bytes for each column.
KSRV_AVX2 inline __m128i load_two(const std::uint8_t *row, const std::uint32_t *offsets) noexcept {
    const __m128i first = _mm_loadl_epi64(reinterpret_cast<const __m128i *>(row + offsets[0]));
    return _mm_castpd_si128(
        _mm_loadh_pd(_mm_castsi128_pd(first), reinterpret_cast<const double *>(row + offsets[1])));
}

// Two pixels of three channels per iteration. Each half of a vector has one pixel and a fourth value, which the next
// pixel overwrites.
KSRV_AVX2 void resize_width_rgb(const std::uint8_t *row, const std::uint32_t *offsets,
                                const float *weights, std::size_t pixels, float *out) noexcept {
    // The bytes of two left pixels, then the bytes of their right neighbours.
    const __m128i order = _mm_setr_epi8(0, 1, 2, -1, 8, 9, 10, -1, 3, 4, 5, -1, 11, 12, 13, -1);
    const __m256i lefts = _mm256_setr_epi32(0, 0, 0, 0, 2, 2, 2, 2), rights = _mm256_setr_epi32(1, 1, 1, 1, 3, 3, 3, 3);
    for (std::size_t x = 0; x + 2 <= pixels; x += 2) {
        const __m128i bytes = _mm_shuffle_epi8(load_two(row, offsets + x), order);
        const __m256 left = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
        const __m256 right = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_unpackhi_epi64(bytes, bytes)));
        const __m256 pairs = _mm256_castps128_ps256(_mm_loadu_ps(weights + 2 * x));
        const __m256 sum = _mm256_add_ps(_mm256_mul_ps(left, _mm256_permutevar8x32_ps(pairs, lefts)),
                                         _mm256_mul_ps(right, _mm256_permutevar8x32_ps(pairs, rights)));
        _mm_storeu_ps(out + 3 * x, _mm256_castps256_ps128(sum));
        _mm_storeu_ps(out + 3 * x + 3, _mm256_extractf128_ps(sum, 1));
    }
}

KSRV_AVX2 void resize_width_rgb(const std::uint8_t *row, const std::uint32_t *offsets,
                                const std::int16_t *weights, std::size_t pixels,
                                std::int16_t *out) noexcept {
    // Each value next to its right neighbour.
    const __m128i order = _mm_setr_epi8(0, 3, 1, 4, 2, 5, -1, -1, 8, 11, 9, 12, 10, 13, -1, -1);
    const __m256i spread = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1);
    for (std::size_t x = 0; x + 2 <= pixels; x += 2) {
        const __m128i bytes = _mm_shuffle_epi8(load_two(row, offsets + x), order);
        const __m128i pairs = _mm_loadl_epi64(reinterpret_cast<const __m128i *>(weights + 2 * x));
        const __m256i weight = _mm256_permutevar8x32_epi32(_mm256_castsi128_si256(pairs), spread);
        const __m256i sum = _mm256_madd_epi16(_mm256_cvtepu8_epi16(bytes), weight);
        const __m256i kept = _mm256_srai_epi32(sum, DROPPED_BITS);
        const __m256i packed = _mm256_packs_epi32(kept, kept);
        _mm_storel_epi64(reinterpret_cast<__m128i *>(out + 3 * x), _mm256_castsi256_si128(packed));
        _mm_storel_epi64(reinterpret_cast<__m128i *>(out + 3 * x + 3), _mm256_extracti128_si256(packed, 1));
    }
}

bool has_avx2() noexcept {
    static const bool found = __builtin_cpu_supports("avx2");
    return found;
}
#endif

// Interpolates between two rows that are resized in width. `weight` is of the lower row, `rest` of the upper row.
KSRV_CLONES void mix_rows(const float *__restrict upper, const float *__restrict lower, float weight, float rest,
                          std::size_t count, float *__restrict out) noexcept {
    for (std::size_t i = 0; i < count; ++i) out[i] = upper[i] * rest + lower[i] * weight;
}

// The values have 7 fractional bits (WEIGHT_BITS - DROPPED_BITS) and the weights 11. OpenCV drops 16 bits of each
// product and rounds away the last 2 bits of the sum.
KSRV_CLONES void mix_rows(const std::int16_t *__restrict upper, const std::int16_t *__restrict lower,
                          std::int16_t weight, std::int16_t rest, std::size_t count,
                          std::uint8_t *__restrict out) noexcept {
    for (std::size_t i = 0; i < count; ++i) {
        const int above = rest * upper[i] >> 16, below = weight * lower[i] >> 16;
        out[i] = static_cast<std::uint8_t>((above + below + 2) >> 2);
    }
}

}  // namespace

template <typename Value>
LinearResize<Value>::LinearResize(const ResizeWindow &window, int sample, const PixelTarget &target,
                                  const Coefficients &coefficients) noexcept
    : window_(window), sample_(sample), values_(window.out_width * window.channels),
      results_(window, std::is_same_v<Value, float> ? PIXEL_F32 : PIXEL_U8, target, coefficients) {}

template <typename Value> bool LinearResize<Value>::prepare() noexcept {
    const std::size_t row = values_ + SLACK_VALUES, columns = window_.out_width;
    const std::size_t nbytes =
        columns * (sizeof(std::uint32_t) + 2 * sizeof(Value)) + 2 * row * sizeof(Value) + results_.nbytes();
    std::uint8_t *const start = reserve_rows<LinearResize>(nbytes);
    if (!start) return false;
    std::uint32_t *const offsets = reinterpret_cast<std::uint32_t *>(start);
    Value *const weights = reinterpret_cast<Value *>(offsets + columns);
    rows_[0] = weights + 2 * columns;
    rows_[1] = rows_[0] + row;
    results_.use(reinterpret_cast<std::uint8_t *>(rows_[1] + row));
    const std::size_t bytes = window_.width * window_.channels;
    const std::ptrdiff_t last = static_cast<std::ptrdiff_t>(window_.width) - 1;
    // A picture has fewer than 2^24 rows and columns (see read_image_header), so that nothing here overflows.
    for (std::size_t x = 0; x < columns; ++x) {
        Neighbours pair = between_neighbours(window_.left + x, window_.width, window_.full_width);
        if (pair.first < 0) pair = {0, 0.0f};
        if (pair.first >= last) pair = {last, 0.0f};
        offsets[x] = static_cast<std::uint32_t>(pair.first) * static_cast<std::uint32_t>(window_.channels);
        weights[2 * x] = weight_of<Value>(1.0f - pair.weight);
        weights[2 * x + 1] = weight_of<Value>(pair.weight);
        if (offsets[x] + 8 <= bytes) whole_vectors_ = x + 1;
    }
    offsets_ = offsets;
    weights_ = weights;
    return true;
}

template <typename Value> PixelBox LinearResize<Value>::box(std::uint32_t, std::uint32_t) const noexcept {
    const Lines rows = linear_reach(window_.top, window_.out_height, window_.height, window_.full_height);
    const Lines columns = linear_reach(window_.left, window_.out_width, window_.width, window_.full_width);
    return {static_cast<std::uint32_t>(rows.first), static_cast<std::uint32_t>(columns.first),
            static_cast<std::uint32_t>(rows.count), static_cast<std::uint32_t>(columns.count)};
}

template <typename Value>
template <typename Sample>
void LinearResize<Value>::resize_pixels(const Sample *row, std::size_t begin, Value *out) const noexcept {
    const std::size_t channels = window_.channels, last = (window_.width - 1) * channels;
    for (std::size_t x = begin; x < window_.out_width; ++x) {
        const Sample *const left = row + offsets_[x];
        // The last column has no right neighbour: its weight is zero.
        const Sample *const right = offsets_[x] < last ? left + channels : left;
        for (std::size_t c = 0; c < channels; ++c)
            out[x * channels + c] = between(left[c], right[c], weights_[2 * x], weights_[2 * x + 1]);
    }
}

template <typename Value>
void LinearResize<Value>::resize_width(const std::uint8_t *pixels, Value *out) const noexcept {
    if (sample_ == PIXEL_U16) return resize_pixels(reinterpret_cast<const std::uint16_t *>(pixels), 0, out);
    std::size_t done = 0;
#ifdef KSRV_AVX2
    if (window_.channels == 3 && has_avx2()) {
        done = whole_vectors_ & ~static_cast<std::size_t>(1);
        resize_width_rgb(pixels, offsets_, weights_, done, out);
    }
#endif
    resize_pixels(pixels, done, out);
}

template <typename Value>
void LinearResize<Value>::take(std::uint32_t row, const std::uint8_t *pixels) noexcept {
    while (next_ < window_.out_height) {
        const Neighbours wanted = between_neighbours(window_.top + next_, window_.height, window_.full_height);
        // A row outside of the picture is replaced by the border row, but keeps its weight, as in OpenCV.
        const std::size_t upper = inside(wanted.first, window_.height);
        const std::size_t lower = inside(wanted.first + 1, window_.height);
        if (row != upper && row != lower) return;
        // Two successive rows are needed at a time, so that even and odd rows each have a buffer.
        if (stored_[row & 1] != row) {
            resize_width(pixels, rows_[row & 1]);
            stored_[row & 1] = row;
        }
        if (row != lower) return;
        mix_rows(rows_[upper & 1], rows_[lower & 1], weight_of<Value>(wanted.weight),
                 weight_of<Value>(1.0f - wanted.weight), values_,
                 reinterpret_cast<Result<Value> *>(results_.place(next_)));
        results_.done(next_++);
    }
}

template class LinearResize<float>;
template class LinearResize<std::int16_t>;

}  // namespace ksrv
