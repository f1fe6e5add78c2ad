#include "images/convert_pixels.hpp"

#include <algorithm>
#include <cstring>

#include "base/cpu_dispatch.hpp"
#include "tensor/datatype.hpp"

namespace ksrv {

namespace {

// ---- arithmetic on runs of values with periodic coefficients --------------------------------

constexpr std::size_t PERIOD = CONSTANTS_PERIOD;
constexpr std::size_t RUN = 8 * PERIOD;

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
    if (ARITHMETIC == ARITHMETIC_EXACT) return (value / c.scale - c.first[i]) / c.second[i];
    return value;
}

// Computes `count` contiguous values. The first is at the start of the period.
template <int ARITHMETIC, typename S, typename T>
KSRV_INLINE void compute_run(const S *__restrict source, T *__restrict target, std::size_t count,
                             const Constants<T> &c) noexcept {
    std::size_t i = 0;
    for (; i + PERIOD <= count; i += PERIOD)
        for (std::size_t j = 0; j < PERIOD; ++j)
            target[i + j] = compute<ARITHMETIC>(static_cast<T>(source[i + j]), c, j);
    for (std::size_t j = 0; i < count; ++i, ++j)
        target[i] = compute<ARITHMETIC>(static_cast<T>(source[i]), c, j);
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
KSRV_INLINE I saturate(float value, float low, float high) noexcept {
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

// A separate function, because inlining it into all callers would make up most of the core's code.
KSRV_CLONES
static void store_others(int datatype, const float *__restrict values, unsigned char *target,
                         std::size_t count) noexcept {
    switch (datatype) {
        case DT_FP16: {
            auto *out = reinterpret_cast<std::uint16_t *>(target);
            for (std::size_t i = 0; i < count; ++i) out[i] = half_bits(values[i]);
            return;
        }
        case DT_BF16: {
            auto *out = reinterpret_cast<std::uint16_t *>(target);
            for (std::size_t i = 0; i < count; ++i) out[i] = bfloat_bits(values[i]);
            return;
        }
        case DT_UINT8: {
            for (std::size_t i = 0; i < count; ++i)
                target[i] = saturate<std::uint8_t>(values[i], 0.0f, 255.0f);
            return;
        }
        case DT_INT8: {
            auto *out = reinterpret_cast<std::int8_t *>(target);
            for (std::size_t i = 0; i < count; ++i)
                out[i] = saturate<std::int8_t>(values[i], -128.0f, 127.0f);
            return;
        }
        case DT_UINT16: {
            auto *out = reinterpret_cast<std::uint16_t *>(target);
            for (std::size_t i = 0; i < count; ++i)
                out[i] = saturate<std::uint16_t>(values[i], 0.0f, 65535.0f);
            return;
        }
        case DT_INT16: {
            auto *out = reinterpret_cast<std::int16_t *>(target);
            for (std::size_t i = 0; i < count; ++i)
                out[i] = saturate<std::int16_t>(values[i], -32768.0f, 32767.0f);
            return;
        }
        default: {  // DT_INT32; the largest float below 2^31
            auto *out = reinterpret_cast<std::int32_t *>(target);
            for (std::size_t i = 0; i < count; ++i)
                out[i] = saturate<std::int32_t>(values[i], -2147483648.0f, 2147483520.0f);
            return;
        }
    }
}

KSRV_INLINE void store_run(int datatype, const float *__restrict values, unsigned char *target,
                           std::size_t count) noexcept {
    if (datatype == DT_FP32)
        std::memcpy(target, values, count * 4);
    else
        store_others(datatype, values, target, count);
}

KSRV_INLINE void store_run(int, const double *__restrict values, unsigned char *target,
                           std::size_t count) noexcept {
    std::memcpy(target, values, count * 8);
}

// ---- the general path: load, compute and store runs of one row -------------------------------

// The three steps are separate functions: one function for every combination of source and arithmetic would take a
// fifth of the core's compile time.

template <typename S, typename T>
KSRV_INLINE void load_channels(const PixelSource &source, const PixelTarget &target, const unsigned char *row,
                               std::size_t x, std::size_t pixels, T *__restrict values) noexcept {
    const S *at = reinterpret_cast<const S *>(row) + x * source.channels;
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

}  // namespace

KSRV_CLONES
void compute_values(const float *__restrict source, float *__restrict target, std::size_t count,
                    int arithmetic, const Constants<float> &c) noexcept {
    if (arithmetic == ARITHMETIC_FAST)
        compute_run<ARITHMETIC_FAST>(source, target, count, c);
    else
        compute_run<ARITHMETIC_EXACT>(source, target, count, c);
}

namespace {

KSRV_CLONES
static void compute_values(const double *__restrict source, double *__restrict target,
                           std::size_t count, int arithmetic, const Constants<double> &c) noexcept {
    if (arithmetic == ARITHMETIC_FAST)
        compute_run<ARITHMETIC_FAST>(source, target, count, c);
    else
        compute_run<ARITHMETIC_EXACT>(source, target, count, c);
}

template <typename T>
void convert_rows(const PixelSource &source, const PixelTarget &target,
                  const Coefficients &coefficients) noexcept {
    const std::size_t channels = target.channels, most = RUN / channels;
    const std::size_t pixel_bytes = channels * item_size_of(static_cast<Datatype>(target.datatype));
    const bool computes = coefficients.arithmetic != ARITHMETIC_NONE;
    const Constants<T> constants = make_constants<T>(coefficients, channels);
    T loaded[RUN], computed[RUN];
    for (std::size_t y = 0; y < source.height; ++y) {
        const unsigned char *row = source.data + source.row_bytes * static_cast<std::ptrdiff_t>(y);
        unsigned char *out = target.data + target.row_bytes * static_cast<std::ptrdiff_t>(y);
        for (std::size_t x = 0; x < source.width; x += most) {
            const std::size_t pixels = std::min(source.width - x, most);
            load_run(source, target, row, x, pixels, loaded);
            if (computes) compute_values(loaded, computed, pixels * channels, coefficients.arithmetic, constants);
            store_run(target.datatype, computes ? computed : loaded, out, pixels * channels);
            out += pixels * pixel_bytes;
        }
    }
}

// ---- the direct path: 8-bit to FP32 ---------------------------------------------------------

template <int ARITHMETIC, bool REVERSED>
KSRV_INLINE void pixel_row(const std::uint8_t *__restrict source, float *__restrict target,
                           std::size_t pixels, const Constants<float> &c) noexcept {
    constexpr std::size_t first = REVERSED ? 2 : 0, third = REVERSED ? 0 : 2;
    for (std::size_t x = 0; x < pixels; ++x) {
        const float one = source[3 * x + first], two = source[3 * x + 1],
                    three = source[3 * x + third];
        target[3 * x] = compute<ARITHMETIC>(one, c, 0);
        target[3 * x + 1] = compute<ARITHMETIC>(two, c, 1);
        target[3 * x + 2] = compute<ARITHMETIC>(three, c, 2);
    }
}

template <int ARITHMETIC>
KSRV_INLINE void direct_rows(const PixelSource &source, const PixelTarget &target,
                             const Coefficients &coefficients) noexcept {
    std::size_t height = source.height, width = source.width;
    const auto packed = static_cast<std::ptrdiff_t>(width * source.channels);
    if (source.row_bytes == packed && target.row_bytes == 4 * packed) {
        width *= height;  // rows without gaps are one long row
        height = 1;
    }
    const Constants<float> c = make_constants<float>(coefficients, target.channels);
    const bool reversed = target.channels == 3 && target.from[0] == 2;
    for (std::size_t y = 0; y < height; ++y) {
        const std::uint8_t *in = source.data + source.row_bytes * static_cast<std::ptrdiff_t>(y);
        auto *out = reinterpret_cast<float *>(target.data + target.row_bytes * static_cast<std::ptrdiff_t>(y));
        if (reversed)
            pixel_row<ARITHMETIC, true>(in, out, width, c);
        else if (target.channels == 3)
            pixel_row<ARITHMETIC, false>(in, out, width, c);
        else
            compute_run<ARITHMETIC>(in, out, width * source.channels, c);
    }
}

KSRV_CLONES
static void convert_direct(const PixelSource &source, const PixelTarget &target,
                           const Coefficients &c) noexcept {
    switch (c.arithmetic) {
        case ARITHMETIC_FAST: direct_rows<ARITHMETIC_FAST>(source, target, c); return;
        case ARITHMETIC_EXACT: direct_rows<ARITHMETIC_EXACT>(source, target, c); return;
        default: direct_rows<ARITHMETIC_NONE>(source, target, c); return;
    }
}

// Whether the conversion only copies bytes: same type and order, and no arithmetic.
bool same_bytes(const PixelSource &source, const PixelTarget &target, const Coefficients &c) noexcept {
    constexpr int SAME[] = {DT_UINT8, DT_UINT16, DT_INT16, DT_FP32, DT_FP64};  // indexed by PixelType
    return c.arithmetic == ARITHMETIC_NONE && target.datatype == SAME[source.type] &&
           keeps_order(target, source.channels);
}

void copy_rows(const PixelSource &source, const PixelTarget &target) noexcept {
    const std::size_t row = source.width * source.channels *
                            item_size_of(static_cast<Datatype>(target.datatype));
    for (std::size_t y = 0; y < source.height; ++y)
        std::memmove(target.data + target.row_bytes * static_cast<std::ptrdiff_t>(y),
                     source.data + source.row_bytes * static_cast<std::ptrdiff_t>(y), row);
}

// Whether all channels are kept, in the same or in reversed order.
bool direct_order(const PixelSource &source, const PixelTarget &target) noexcept {
    const bool is_reversed = source.channels == 3 && target.channels == 3 && target.from[0] == 2 &&
                             target.from[1] == 1 && target.from[2] == 0;
    return is_reversed || keeps_order(target, source.channels);
}

}  // namespace

void convert_pixels(const PixelSource &source, const PixelTarget &target,
                    const Coefficients &c) noexcept {
    if (source.height == 0 || source.width == 0) return;
    if (same_bytes(source, target, c))
        copy_rows(source, target);
    else if (source.type == PIXEL_U8 && target.datatype == DT_FP32 && direct_order(source, target))
        convert_direct(source, target, c);
    else if (target.datatype == DT_FP64)
        convert_rows<double>(source, target, c);
    else
        convert_rows<float>(source, target, c);
}

Constants<float> float_constants(const Coefficients &c, std::size_t channels) noexcept {
    return make_constants<float>(c, channels);
}

}  // namespace ksrv
