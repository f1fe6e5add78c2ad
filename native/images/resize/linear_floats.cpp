#include "images/resize/linear_floats.hpp"

#include "base/cpu_dispatch.hpp"
#include "images/resize/neighbours.hpp"
#include "tensor/datatype.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define KSRV_AVX2 __attribute__((target("avx2")))
#endif

namespace ksrv {
namespace {

// A picture has fewer than 2^24 rows and columns (see read_image_header), so that nothing here overflows.
template <typename Sample>
void resize_width_portable(const Sample *row, std::size_t channels, const std::uint32_t *offsets,
                        const float *weights, std::size_t begin, std::size_t end, std::size_t last,
                        float *out) noexcept {
    for (std::size_t x = begin; x < end; ++x) {
        const Sample *const left = row + offsets[x];
        // The last column has no right neighbour: its weight is zero.
        const Sample *const right = offsets[x] < last ? left + channels : left;
        const float b = weights[x], a = 1.0f - b;
        for (std::size_t c = 0; c < channels; ++c)
            out[x * channels + c] = static_cast<float>(left[c]) * a + static_cast<float>(right[c]) * b;
    }
}

#ifdef KSRV_AVX2
// Two pixels of three channels per iteration. Each half of a vector has one pixel and a fourth value, which the next
// pixel overwrites.
KSRV_AVX2 void resize_width_rgb(const std::uint8_t *row, const std::uint32_t *offsets,
                                const float *weights, std::size_t pixels, float *out) noexcept {
    const __m256 one = _mm256_set1_ps(1.0f);
    // The bytes of two left pixels, then the bytes of their right neighbours.
    const __m128i order = _mm_setr_epi8(0, 1, 2, -1, 8, 9, 10, -1, 3, 4, 5, -1, 11, 12, 13, -1);
    const __m256i spread = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1);
    for (std::size_t x = 0; x + 2 <= pixels; x += 2) {
        const __m128i first = _mm_loadl_epi64(reinterpret_cast<const __m128i *>(row + offsets[x]));
        const __m128d both = _mm_loadh_pd(_mm_castsi128_pd(first),
                                          reinterpret_cast<const double *>(row + offsets[x + 1]));
        const __m128i bytes = _mm_shuffle_epi8(_mm_castpd_si128(both), order);
        const __m256 left = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
        const __m256 right =
            _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_unpackhi_epi64(bytes, bytes)));
        const __m128 pair = _mm_castsi128_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(weights + x)));
        const __m256 b = _mm256_permutevar8x32_ps(_mm256_castps128_ps256(pair), spread);
        const __m256 a = _mm256_sub_ps(one, b);
        const __m256 sum = _mm256_add_ps(_mm256_mul_ps(left, a), _mm256_mul_ps(right, b));
        _mm_storeu_ps(out + 3 * x, _mm256_castps256_ps128(sum));
        _mm_storeu_ps(out + 3 * x + 3, _mm256_extractf128_ps(sum, 1));
    }
}

bool has_avx2() noexcept {
    static const bool found = __builtin_cpu_supports("avx2");
    return found;
}
#endif

KSRV_CLONES void mix_rows(const float *__restrict upper, const float *__restrict lower, float weight,
                          std::size_t count, float *__restrict out) noexcept {
    const float rest = 1.0f - weight;
    for (std::size_t i = 0; i < count; ++i) out[i] = upper[i] * rest + lower[i] * weight;
}

}  // namespace

LinearFloats::LinearFloats(const ResizeWindow &window, int sample, const PixelTarget &target,
                           const Coefficients &coefficients) noexcept
    : window_(window), sample_(sample), target_(target), coefficients_(coefficients),
      constants_(float_constants(coefficients, window.channels)),
      direct_(target.datatype == DT_FP32 && keeps_order(target, window.channels)),
      values_(window.out_width * window.channels) {}

bool LinearFloats::prepare() noexcept {
    const std::size_t row = (values_ + 16) * sizeof(float);
    const std::size_t columns = window_.out_width * (sizeof(std::uint32_t) + sizeof(float));
    std::uint8_t *const start = row_memory<LinearFloats>().reserve(3 * row + columns);
    if (!start) return false;
    rows_.rows[0] = reinterpret_cast<float *>(start);
    rows_.rows[1] = rows_.rows[0] + values_ + 16;
    made_ = rows_.rows[1] + values_ + 16;
    float *const weights = made_ + values_ + 16;
    std::uint32_t *const offsets = reinterpret_cast<std::uint32_t *>(weights + window_.out_width);
    const std::size_t bytes = window_.width * window_.channels;
    for (std::size_t x = 0; x < window_.out_width; ++x) {
        Neighbours one = between_neighbours(window_.left + x, window_.width, window_.full_width);
        const std::ptrdiff_t last = static_cast<std::ptrdiff_t>(window_.width) - 1;
        if (one.first < 0) one = {0, 0.0f};
        if (one.first >= last) one = {last, 0.0f};
        offsets[x] = static_cast<std::uint32_t>(one.first) * static_cast<std::uint32_t>(window_.channels);
        weights[x] = one.weight;
        if (offsets[x] + 8 <= bytes) whole_vectors_ = x + 1;
    }
    offsets_ = offsets;
    weights_ = weights;
    return true;
}

void LinearFloats::resize_width(const std::uint8_t *pixels, float *out) const noexcept {
    const std::size_t last = (window_.width - 1) * window_.channels;
    if (sample_ == PIXEL_U16) {
        resize_width_portable(reinterpret_cast<const std::uint16_t *>(pixels), window_.channels, offsets_,
                           weights_, 0, window_.out_width, last, out);
        return;
    }
    std::size_t done = 0;
#ifdef KSRV_AVX2
    if (window_.channels == 3 && has_avx2()) {
        done = whole_vectors_ & ~static_cast<std::size_t>(1);
        resize_width_rgb(pixels, offsets_, weights_, done, out);
    }
#endif
    resize_width_portable(pixels, window_.channels, offsets_, weights_, done, window_.out_width, last, out);
}

void LinearFloats::emit(std::size_t row, const float *upper, const float *lower, float weight) noexcept {
    unsigned char *const place = target_.data + static_cast<std::ptrdiff_t>(row) * target_.row_bytes;
    float *const numbers = reinterpret_cast<float *>(place);
    const bool computes = coefficients_.arithmetic != ARITHMETIC_NONE;
    mix_rows(upper, lower, weight, values_, direct_ && !computes ? numbers : made_);
    if (direct_) {
        if (computes) compute_values(made_, numbers, values_, coefficients_.arithmetic, constants_);
        return;
    }
    PixelSource source{};
    source.data = reinterpret_cast<const unsigned char *>(made_);
    source.type = PIXEL_F32;
    source.height = 1;
    source.width = window_.out_width;
    source.channels = window_.channels;
    PixelTarget target = target_;
    target.data = place;
    convert_pixels(source, target, coefficients_);
}

void LinearFloats::take(std::uint32_t row, const std::uint8_t *pixels) noexcept {
    rows_.take(
        window_, row, [this, pixels](float *out) { resize_width(pixels, out); },
        [this](std::size_t made, const float *upper, const float *lower, float weight) {
            emit(made, upper, lower, weight);
        });
}

}  // namespace ksrv
