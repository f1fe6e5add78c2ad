// Converts pixels to a model's numbers in one pass: channel order, arithmetic, datatype.
//
// Strategy: rows pass through a buffer that stays in the first-level cache: load (any source type, any channel order)
// to float or double, compute, store (any datatype, rounded to nearest even and saturated). All loops are scalar, for
// the compiler to vectorise; see base/cpu_dispatch.hpp.
//
// ARITHMETIC_FAST computes x * a + b with a = 1 / (scale * std) and b = -mean / std, rounded once to float.
// ARITHMETIC_EXACT computes ((x / scale) - mean) / std, and rounds each step to float. The result equals the result of
// numpy, torch and torchvision bit for bit.

#pragma once

#include <cstddef>

namespace ksrv {

enum PixelType : int { PIXEL_U8 = 0, PIXEL_U16, PIXEL_I16, PIXEL_F32, PIXEL_F64 };
enum Arithmetic : int { ARITHMETIC_NONE = 0, ARITHMETIC_FAST, ARITHMETIC_EXACT };

inline constexpr int MAX_CHANNELS = 4;

// The normalization of pixel values, by channel of the target.
struct Coefficients {
    int arithmetic = ARITHMETIC_NONE;  // an Arithmetic
    double scale = 1.0;
    double mean[MAX_CHANNELS] = {0, 0, 0, 0};
    double std[MAX_CHANNELS] = {1, 1, 1, 1};
};

struct PixelSource {
    const unsigned char *data;
    int type;  // a PixelType
    std::size_t height, width, channels;
    std::ptrdiff_t row_bytes;  // the pixels of a row are contiguous
};

struct PixelTarget {
    unsigned char *data;
    int datatype;  // a Datatype of tensor/datatype.hpp
    std::size_t channels;
    int from[MAX_CHANNELS];    // source channel for each target channel
    std::ptrdiff_t row_bytes;  // the pixels of a row are contiguous
};

// Whether the target has the same channels as the source, in the same order.
inline bool keeps_order(const PixelTarget &target, std::size_t channels) noexcept {
    bool kept = target.channels == channels;
    for (std::size_t c = 0; kept && c < target.channels; ++c)
        kept = target.from[c] == static_cast<int>(c);
    return kept;
}

// Converts all pixels. The caller must have checked sizes, channel numbers and the datatype.
void convert_pixels(const PixelSource &source, const PixelTarget &target, const Coefficients &c) noexcept;

}  // namespace ksrv
