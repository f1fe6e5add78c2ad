// Decodes and resizes the JPEGs of a batch into its rows, with a decode pool and without the GIL.

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

// A JPEG of a batch: the job to decode it, how to resize it, and the row that it fills.
struct JpegRow {
    JpegJob jpeg{};
    ResizeKind kind{};
    ResizeWindow window{};
    PixelTarget target{};
    const Coefficients *coefficients = nullptr;
    // The row in the batch. All zero if the picture was not decoded, so that no data of other requests is visible.
    unsigned char *row = nullptr;
    std::size_t row_bytes = 0;
    std::size_t part_offset = 0;  // offset, from the row's first byte, of the part that the picture fills
    // One pixel of a letterbox's border. Unused if the picture fills its row.
    unsigned char border[32] = {};  // at most 4 channels of 8 bytes
    std::size_t border_bytes = 0;
    std::uint64_t decode_ns = 0;
    std::uint64_t decoder_bytes = 0;
    const std::atomic<std::int32_t> *ended = nullptr;  // not 0 once the request has ended; null without a request
    Decoded result = Decoded::elsewhere;  // unchanged if the request has ended
};

// Decodes one JPEG on this thread. The caller has reserved `decoder_bytes`.
void decode_jpeg_row(JpegRow &jpeg_row) noexcept;

// Decodes the JPEGs in order, on several threads if that is faster, as many at once as memory allows. If memory is too
// short for the largest alone, all are left to another decoder (`Decoded::elsewhere`), which reports the error.
void decode_jpegs(DecodePool &pool, DecodeMemory &memory, JpegRow *jpegs, std::size_t count) noexcept;

// The resize plans of one image input, by picture size. A plan is a JpegRow without file, row, costs and request. A
// plan without coefficients means that pictures of this size cannot be decoded row by row. Thread-safe.
class RowPlans {
  public:
    // False if the size has no plan yet.
    bool find(std::uint32_t height, std::uint32_t width, std::uint32_t channels, JpegRow *plan) noexcept {
        const std::lock_guard lock(mutex_);
        const auto found = plans_.find(key(height, width, channels));
        if (found != plans_.end()) *plan = found->second;
        return found != plans_.end();
    }

    void keep(std::uint32_t height, std::uint32_t width, std::uint32_t channels, const JpegRow &plan) {
        const std::lock_guard lock(mutex_);
        if (plans_.size() >= MOST_PLANS) plans_.clear();
        plans_[key(height, width, channels)] = plan;
    }

  private:
    static constexpr std::size_t MOST_PLANS = 1024;

    // A picture has fewer than 2^28 rows and columns, and at most 4 channels.
    static std::uint64_t key(std::uint64_t height, std::uint64_t width, std::uint32_t channels) noexcept {
        return height << 36 | width << 4 | channels;
    }

    std::mutex mutex_;
    std::unordered_map<std::uint64_t, JpegRow> plans_;
};

}  // namespace ksrv
