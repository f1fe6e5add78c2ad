// The two passes of Pillow's bilinear resize, with its fixed-point weights.

#pragma once

#include <cstddef>
#include <cstdint>

#include "images/resize/window.hpp"

namespace ksrv::pillow {

constexpr std::size_t LANES = 16;  // rows that the horizontal pass processes at once

// The weights of one axis: output i is the weighted sum of `count[i]` inputs, starting at `first[i]`. A tap is one
// input of an output.
struct Axis {
    std::size_t outputs = 0, taps = 0;  // taps: the most of an output
    std::int32_t *first = nullptr, *count = nullptr, *weight = nullptr;  // weight[i * taps + tap]
};

// The most taps of an output.
std::size_t most_taps(std::size_t input, std::size_t output) noexcept;

// Fills `axis` for the outputs [start, start + axis.outputs) of a resize from `input` to `output`. `weights` is scratch
// memory for `axis.taps` values.
void make_axis(Axis *axis, std::size_t input, std::size_t output, std::size_t start, double *weights) noexcept;

// The range of inputs that the outputs of an axis read.
Lines reach(const Axis &axis) noexcept;

// Resizes rows of `source`, which begin with the axis's first input, into rows of `target`. `groups` (LANES rows
// of the source) and `results` (LANES rows of the target) are scratch memory.
void horizontal_pass(const std::uint8_t *source, std::ptrdiff_t source_bytes, std::size_t rows,
                     std::size_t channels, const Axis &axis, std::uint8_t *target,
                     std::ptrdiff_t target_bytes, std::uint8_t *groups,
                     std::uint8_t *results) noexcept;

// Row i of `target` is the weighted sum of rows of `source`. Row 0 of `source` is input row `origin`.
void vertical_pass(const std::uint8_t *source, std::ptrdiff_t source_bytes, std::size_t length,
                   const Axis &axis, std::size_t origin, std::uint8_t *target,
                   std::ptrdiff_t target_bytes) noexcept;

// Divides one scratch block into pieces that are aligned to 64 bytes. With `data` null it only counts the bytes in
// `used`.
struct Scratch {
    unsigned char *data = nullptr;
    std::size_t used = 0;
    template <typename T>
    T *take(std::size_t count) noexcept {
        T *piece = data != nullptr ? reinterpret_cast<T *>(data + used) : nullptr;
        used += (count * sizeof(T) + 63) & ~std::size_t{63};
        return piece;
    }
    // An axis for `outputs` outputs. The weights are not filled in.
    Axis axis(std::size_t outputs, std::size_t input, std::size_t output) noexcept;
};

}  // namespace ksrv::pillow
