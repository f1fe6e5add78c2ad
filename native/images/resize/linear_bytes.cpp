#include "images/resize/linear_bytes.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/cpu_dispatch.hpp"
#include "images/decode/row_memory.hpp"
#include "images/resize/neighbours.hpp"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define KSRV_AVX2 __attribute__((target("avx2")))
#endif

namespace ksrv {
namespace {

constexpr int WEIGHT_BITS = 11;
constexpr int DROPPED_BITS = 4;  // dropped from a value that is resized in width
constexpr std::size_t SLACK_VALUES = 16;

// A weight as OpenCV rounds it: to nearest even.
std::int16_t fixed(float weight) noexcept {
    return static_cast<std::int16_t>(std::nearbyint(weight * static_cast<float>(1 << WEIGHT_BITS)));
}

#ifdef KSRV_AVX2
// Two pixels of three channels per iteration. Each half of a vector has one pixel and a fourth value, which the next
// pixel overwrites.
KSRV_AVX2 void resize_width_rgb(const std::uint8_t *row, const std::uint32_t *offsets,
                                const std::int16_t *weights, std::size_t pixels,
                                std::int16_t *out) noexcept {
    // Each value next to its right neighbour.
    const __m128i order = _mm_setr_epi8(0, 3, 1, 4, 2, 5, -1, -1, 8, 11, 9, 12, 10, 13, -1, -1);
    const __m256i spread = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1);
    for (std::size_t x = 0; x + 2 <= pixels; x += 2) {
        const __m128i first = _mm_loadl_epi64(reinterpret_cast<const __m128i *>(row + offsets[x]));
        const __m128d both = _mm_loadh_pd(_mm_castsi128_pd(first),
                                          reinterpret_cast<const double *>(row + offsets[x + 1]));
        const __m128i bytes = _mm_shuffle_epi8(_mm_castpd_si128(both), order);
        const __m128i pair = _mm_loadl_epi64(reinterpret_cast<const __m128i *>(weights + 2 * x));
        const __m256i weight = _mm256_permutevar8x32_epi32(_mm256_castsi128_si256(pair), spread);
        const __m256i sum = _mm256_madd_epi16(_mm256_cvtepu8_epi16(bytes), weight);
        const __m256i kept = _mm256_srai_epi32(sum, DROPPED_BITS);
        const __m256i packed = _mm256_packs_epi32(kept, kept);
        _mm_storel_epi64(reinterpret_cast<__m128i *>(out + 3 * x), _mm256_castsi256_si128(packed));
        _mm_storel_epi64(reinterpret_cast<__m128i *>(out + 3 * x + 3),
                         _mm256_extracti128_si256(packed, 1));
    }
}

bool has_avx2() noexcept {
    static const bool found = __builtin_cpu_supports("avx2");
    return found;
}
#endif

KSRV_CLONES void mix_rows(const std::int16_t *__restrict upper, const std::int16_t *__restrict lower,
                          std::int16_t weight, std::int16_t rest, std::size_t count,
                          std::uint8_t *__restrict out) noexcept {
    for (std::size_t i = 0; i < count; ++i) {
        const int one = rest * upper[i] >> 16, other = weight * lower[i] >> 16;
        out[i] = static_cast<std::uint8_t>((one + other + 2) >> 2);
    }
}

}  // namespace

bool LinearBytes::prepare() noexcept {
    const std::size_t columns = window_.out_width * (sizeof(std::uint32_t) + 2 * sizeof(std::int16_t));
    const std::size_t row = (values_ + SLACK_VALUES) * sizeof(std::int16_t);
    std::uint8_t *const start = row_memory<LinearBytes>().reserve(columns + 2 * row + rows_out_.nbytes());
    if (!start) return false;
    std::uint32_t *const offsets = reinterpret_cast<std::uint32_t *>(start);
    std::int16_t *const weights = reinterpret_cast<std::int16_t *>(offsets + window_.out_width);
    rows_.rows[0] = weights + 2 * window_.out_width;
    rows_.rows[1] = rows_.rows[0] + values_ + SLACK_VALUES;
    rows_out_.use(reinterpret_cast<std::uint8_t *>(rows_.rows[1] + values_ + SLACK_VALUES));
    const std::size_t bytes = window_.width * window_.channels;
    const std::ptrdiff_t last = static_cast<std::ptrdiff_t>(window_.width) - 1;
    for (std::size_t x = 0; x < window_.out_width; ++x) {
        Neighbours one = between_neighbours(window_.left + x, window_.width, window_.full_width);
        if (one.first < 0) one = {0, 0.0f};
        if (one.first >= last) one = {last, 0.0f};
        offsets[x] = static_cast<std::uint32_t>(one.first) * static_cast<std::uint32_t>(window_.channels);
        weights[2 * x] = fixed(1.0f - one.weight);
        weights[2 * x + 1] = fixed(one.weight);
        if (offsets[x] + 8 <= bytes) whole_vectors_ = x + 1;
    }
    offsets_ = offsets;
    weights_ = weights;
    return true;
}

void LinearBytes::resize_width(const std::uint8_t *pixels, std::int16_t *out) const noexcept {
    const std::size_t channels = window_.channels, last = (window_.width - 1) * channels;
    std::size_t x = 0;
#ifdef KSRV_AVX2
    if (channels == 3 && has_avx2()) {
        x = whole_vectors_ & ~static_cast<std::size_t>(1);
        resize_width_rgb(pixels, offsets_, weights_, x, out);
    }
#endif
    for (; x < window_.out_width; ++x) {
        const std::uint8_t *const left = pixels + offsets_[x];
        // The last column has no right neighbour: its weight is zero.
        const std::uint8_t *const right = offsets_[x] < last ? left + channels : left;
        for (std::size_t c = 0; c < channels; ++c)
            out[x * channels + c] = static_cast<std::int16_t>(
                (left[c] * weights_[2 * x] + right[c] * weights_[2 * x + 1]) >> DROPPED_BITS);
    }
}

void LinearBytes::take(std::uint32_t row, const std::uint8_t *pixels) noexcept {
    rows_.take(
        window_, row, [this, pixels](std::int16_t *out) { resize_width(pixels, out); },
        [this](std::size_t made, const std::int16_t *upper, const std::int16_t *lower, float weight) {
            mix_rows(upper, lower, fixed(weight), fixed(1.0f - weight), values_, rows_out_.place(made));
            rows_out_.done(made);
        });
}

}  // namespace ksrv
