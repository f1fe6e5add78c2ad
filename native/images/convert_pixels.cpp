#include "images/convert_pixels.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

#include "base/cpu_dispatch.hpp"
#include "tensor/datatype.hpp"

namespace ksrv {

namespace {

// ---- arithmetic on runs of values with periodic coefficients --------------------------------

// Values of interleaved channels need the same coefficients again after PERIOD values. 48 is a multiple of 1, 2, 3 and
// 4 channels, and of vectors of 4, 8 and 16 floats.
constexpr std::size_t PERIOD = 48;
constexpr std::size_t RUN = 8 * PERIOD;  // values that pass through the buffer at a time

// The constants of the arithmetic for adjacent values. `fast` multiplies by `first` and adds `second`; `exact` divides
// by the scale, subtracts `first` and divides by `second`.
template <typename T>
struct Constants {
    T first[PERIOD], second[PERIOD];
    T scale;
};

template <typename T>
KSRV_INLINE Constants<T> make_constants(const Coefficients &c, std::size_t channels) noexcept {
    Constants<T> constants;
    constants.scale = static_cast<T>(c.scale);
    for (std::size_t i = 0; i < PERIOD; ++i) {
        const double mean = c.mean[i % channels], std = c.std[i % channels];
        const bool is_exact = c.arithmetic == ARITHMETIC_EXACT;
        constants.first[i] = static_cast<T>(is_exact ? mean : 1.0 / (c.scale * std));
        constants.second[i] = static_cast<T>(is_exact ? std : -mean / std);
    }
    return constants;
}

template <int ARITHMETIC, typename T>
KSRV_INLINE T compute(T value, const Constants<T> &c, std::size_t i) noexcept {
    if (ARITHMETIC == ARITHMETIC_FAST) return value * c.first[i] + c.second[i];
    return (value / c.scale - c.first[i]) / c.second[i];
}

// Computes `count` contiguous values. The first is at the start of the period.
template <int ARITHMETIC, typename T>
KSRV_INLINE void compute_run(const T *__restrict source, T *__restrict target, std::size_t count,
                             const Constants<T> &c) noexcept {
    std::size_t i = 0;
    for (; i + PERIOD <= count; i += PERIOD)
        for (std::size_t j = 0; j < PERIOD; ++j)
            target[i + j] = compute<ARITHMETIC>(source[i + j], c, j);
    for (std::size_t j = 0; i < count; ++i, ++j)
        target[i] = compute<ARITHMETIC>(source[i], c, j);
}

// ---- storing results ------------------------------------------------------------------------

// Rounds to nearest, ties to even, as OpenCV and numpy do: adding 2^23 with the value's sign drops the fraction. Values
// of at least 2^23 are integers already.
KSRV_INLINE float round_even(float value) noexcept {
    constexpr float whole = 8388608.0f;
    const float magic = value < 0.0f ? -whole : whole;
    const float rounded = (value + magic) - magic;
    return value < whole && value > -whole ? rounded : value;
}

template <typename I>
KSRV_INLINE I saturate(float value) noexcept {
    // int32 saturates at the largest float below 2^31.
    constexpr float low = static_cast<float>(std::numeric_limits<I>::min());
    constexpr float high = sizeof(I) == 4 ? 2147483520.0f : static_cast<float>(std::numeric_limits<I>::max());
    value = value > low ? value : low;  // NaN becomes the smallest value
    value = value < high ? value : high;
    return static_cast<I>(static_cast<std::int32_t>(round_even(value)));
}

// IEEE half precision, rounded to nearest even. Values that are too large become infinity, NaN stays NaN.
KSRV_INLINE std::uint16_t half_bits(float value) noexcept {
    std::uint32_t bits;
    std::memcpy(&bits, &value, 4);
    const std::uint32_t sign = bits >> 16 & 0x8000u;
    bits &= 0x7FFFFFFFu;
    // Normal numbers: rebias the exponent, and round away the lowest 13 bits.
    const std::uint32_t normal = (bits - 0x38000000u + 0xFFFu + (bits >> 13 & 1u)) >> 13;
    // Subnormal numbers: adding 0.5 aligns the mantissa, and the addition rounds.
    float magnitude;
    std::memcpy(&magnitude, &bits, 4);
    magnitude += 0.5f;
    std::uint32_t lined;
    std::memcpy(&lined, &magnitude, 4);
    const std::uint32_t subnormal = lined - 0x3F000000u;
    const std::uint32_t special = bits > 0x7F800000u ? 0x7E00u : 0x7C00u;
    std::uint32_t half = bits < 0x38800000u ? subnormal : normal;
    half = bits >= 0x477FF000u ? special : half;
    return static_cast<std::uint16_t>(sign | half);
}

// The upper half of a float, to nearest even; NaN stays NaN.
KSRV_INLINE std::uint16_t bfloat_bits(float value) noexcept {
    std::uint32_t bits;
    std::memcpy(&bits, &value, 4);
    const std::uint32_t rounded = (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16;
    const std::uint32_t nan = bits >> 16 | 0x40u;
    return static_cast<std::uint16_t>((bits & 0x7FFFFFFFu) > 0x7F800000u ? nan : rounded);
}

template <typename I, I (*CONVERT)(float)>
KSRV_INLINE void store_as(const float *__restrict values, unsigned char *target, std::size_t count) noexcept {
    I *const out = reinterpret_cast<I *>(target);
    for (std::size_t i = 0; i < count; ++i) out[i] = CONVERT(values[i]);
}

// A separate function, because inlining it into all callers would make up most of the core's code.
KSRV_CLONES
static void store_run(int datatype, const float *__restrict values, unsigned char *target, std::size_t count) noexcept {
    switch (datatype) {
        case DT_FP16: return store_as<std::uint16_t, half_bits>(values, target, count);
        case DT_BF16: return store_as<std::uint16_t, bfloat_bits>(values, target, count);
        case DT_UINT8: return store_as<std::uint8_t, saturate<std::uint8_t>>(values, target, count);
        case DT_INT8: return store_as<std::int8_t, saturate<std::int8_t>>(values, target, count);
        case DT_UINT16: return store_as<std::uint16_t, saturate<std::uint16_t>>(values, target, count);
        case DT_INT16: return store_as<std::int16_t, saturate<std::int16_t>>(values, target, count);
        default: return store_as<std::int32_t, saturate<std::int32_t>>(values, target, count);
    }
}

// ---- load, compute and store runs of one row --------------------------------------------------

// The three steps are separate functions: one function for every combination of source and arithmetic would take a
// fifth of the core's compile time.

template <typename S, typename T>
KSRV_INLINE void load_channels(const PixelSource &source, const PixelTarget &target, const unsigned char *row,
                               std::size_t x, std::size_t pixels, T *__restrict values) noexcept {
    const S *at = reinterpret_cast<const S *>(row) + x * source.channels;
    if (keeps_order(target, source.channels)) {
        for (std::size_t i = 0; i < pixels * source.channels; ++i) values[i] = static_cast<T>(at[i]);
        return;
    }
    for (std::size_t c = 0; c < target.channels; ++c) {
        const S *from = at + target.from[c];
        for (std::size_t i = 0; i < pixels; ++i)
            values[i * target.channels + c] = static_cast<T>(from[i * source.channels]);
    }
}

template <typename T>
KSRV_INLINE void load_type(const PixelSource &source, const PixelTarget &target, const unsigned char *row,
                           std::size_t x, std::size_t pixels, T *__restrict values) noexcept {
    const auto load = [&](auto type) __attribute__((always_inline)) {
        load_channels<decltype(type)>(source, target, row, x, pixels, values);
    };
    switch (source.type) {
        case PIXEL_U8: load(std::uint8_t{}); return;
        case PIXEL_U16: load(std::uint16_t{}); return;
        case PIXEL_I16: load(std::int16_t{}); return;
        case PIXEL_F32: load(float{}); return;
        default: load(double{}); return;
    }
}

KSRV_CLONES
static void load_run(const PixelSource &source, const PixelTarget &target, const unsigned char *row, std::size_t x,
                     std::size_t pixels, float *__restrict values) noexcept {
    load_type(source, target, row, x, pixels, values);
}

KSRV_CLONES
static void load_run(const PixelSource &source, const PixelTarget &target, const unsigned char *row, std::size_t x,
                     std::size_t pixels, double *__restrict values) noexcept {
    load_type(source, target, row, x, pixels, values);
}

KSRV_CLONES
static void compute_values(const float *__restrict source, float *__restrict target, std::size_t count,
                           int arithmetic, const Constants<float> &c) noexcept {
    if (arithmetic == ARITHMETIC_FAST)
        compute_run<ARITHMETIC_FAST>(source, target, count, c);
    else
        compute_run<ARITHMETIC_EXACT>(source, target, count, c);
}

KSRV_CLONES
static void compute_values(const double *__restrict source, double *__restrict target,
                           std::size_t count, int arithmetic, const Constants<double> &c) noexcept {
    if (arithmetic == ARITHMETIC_FAST)
        compute_run<ARITHMETIC_FAST>(source, target, count, c);
    else
        compute_run<ARITHMETIC_EXACT>(source, target, count, c);
}

template <typename T>
void convert_rows(const PixelSource &source, const PixelTarget &target, const Coefficients &coefficients) noexcept {
    const std::size_t channels = target.channels, run_pixels = RUN / channels;
    const std::size_t pixel_bytes = channels * item_size_of(static_cast<Datatype>(target.datatype));
    const bool computes = coefficients.arithmetic != ARITHMETIC_NONE;
    const bool direct = target.datatype == DT_FP32 || target.datatype == DT_FP64;  // results are stored as they are
    const Constants<T> constants = make_constants<T>(coefficients, channels);
    T loaded[RUN], computed[RUN];
    for (std::size_t y = 0; y < source.height; ++y) {
        const unsigned char *row = source.data + source.row_bytes * static_cast<std::ptrdiff_t>(y);
        unsigned char *out = target.data + target.row_bytes * static_cast<std::ptrdiff_t>(y);
        for (std::size_t x = 0; x < source.width; x += run_pixels) {
            const std::size_t pixels = std::min(source.width - x, run_pixels);
            T *const results = direct ? reinterpret_cast<T *>(out) : computed;
            T *const values = computes ? loaded : results;
            load_run(source, target, row, x, pixels, values);
            if (computes) compute_values(values, results, pixels * channels, coefficients.arithmetic, constants);
            if constexpr (std::is_same_v<T, float>)
                if (!direct) store_run(target.datatype, results, out, pixels * channels);
            out += pixels * pixel_bytes;
        }
    }
}

}  // namespace

void convert_pixels(const PixelSource &source, const PixelTarget &target, const Coefficients &c) noexcept {
    if (target.datatype == DT_FP64)
        convert_rows<double>(source, target, c);
    else
        convert_rows<float>(source, target, c);
}

}  // namespace ksrv
