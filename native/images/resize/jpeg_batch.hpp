// The JPEGs of a batch, decoded and resized into its rows by a decode pool without the GIL.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>

#include "images/decode/memory.hpp"
#include "images/decode/pool.hpp"
#include "images/decode/jpeg_decoder.hpp"
#include "images/resize/row_resize.hpp"

namespace ksrv {

// One of them, of the size that it is seen in. `ended` tells whether its request has ended; null for an image of no request.
struct BatchedJpeg {
    JpegJob jpeg{};
    ResizeKind kind{};
    ResizeWindow window{};
    PixelTarget target{};
    const Coefficients *coefficients = nullptr;
    // The batch's row; all zero where the picture was not decoded, so that no byte of another is seen.
    unsigned char *row = nullptr;
    std::size_t row_bytes = 0;
    std::size_t part_offset = 0;  // of the part that the picture fills, from the row's first byte on
    // One pixel of what lies around a letterbox; none where the picture fills its row.
    unsigned char border[32] = {};
    std::size_t border_bytes = 0;
    std::uint64_t decode_ns = 0;
    std::uint64_t decoder_bytes = 0;  // without what a turned picture takes
    int orientation = 1;  // EXIF's, which is applied
    const std::atomic<std::int32_t> *ended = nullptr;
    Decoded result = Decoded::elsewhere;
    bool passed_over = false;  // its request had ended
};

// Decodes them in order, on several threads when that pays, as many at once as there is memory for. Where there
// is none for the largest of them alone, all are left to `Decoded::elsewhere`, which says so.
void decode_jpegs(DecodePool &pool, DecodeMemory &memory, BatchedJpeg *jpegs, std::size_t count) noexcept;

// How the pictures of one image input become rows, by the size that they are seen in: jobs without file, row, costs
// and request, or without coefficients where they are not decoded row by row. Any thread may ask.
class RowPlans {
  public:
    // False: the size has not come yet.
    bool find(std::uint32_t height, std::uint32_t width, std::uint32_t channels, BatchedJpeg *plan) noexcept {
        const std::lock_guard lock(mutex_);
        const auto found = plans_.find(key(height, width, channels));
        if (found != plans_.end()) *plan = found->second;
        return found != plans_.end();
    }

    void keep(std::uint32_t height, std::uint32_t width, std::uint32_t channels, const BatchedJpeg &plan) {
        const std::lock_guard lock(mutex_);
        plans_[key(height, width, channels)] = plan;
    }

    void forget() noexcept {
        const std::lock_guard lock(mutex_);
        plans_.clear();
    }

  private:
    // A picture has fewer than 2^28 rows and columns, and at most 4 channels.
    static std::uint64_t key(std::uint64_t height, std::uint64_t width, std::uint32_t channels) noexcept {
        return height << 36 | width << 4 | channels;
    }

    std::mutex mutex_;
    std::unordered_map<std::uint64_t, BatchedJpeg> plans_;
};

}  // namespace ksrv
