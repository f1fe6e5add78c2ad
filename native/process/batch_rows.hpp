// The rows of a batch on their way into a ring: tensors are copied and padded, JPEGs are decoded right where they belong.
//
// Strategy: how pictures of one size become rows of an input is said by Python, once for each size, and kept
// here. A picture that is not decoded row by row, or whose decoder leaves it, is Python's with its batch.

#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "images/resize/jpeg_batch.hpp"
#include "server/fast_path.hpp"

namespace ksrv {

// How pictures of one size become rows of one input.
struct ImagePlan {
    BatchedJpeg job;             // but for its file, its row and its costs
    std::size_t offset = 0;      // of the part that the picture fills, from the row's first byte on
    bool by_rows = false;        // false: Python decodes them
};

struct PictureSize {
    std::size_t input = 0;
    std::uint32_t height = 0, width = 0, channels = 0;
};

// What the rows of a batch need.
struct RowsNeeded {
    std::uint64_t rows = 0, decode_ns = 0;
    std::uint64_t row_length = 0;  // where they are padded
    std::size_t nbytes = 0;   // of all inputs, each from an aligned byte on
    bool images = false;
    bool python = false;      // they are not written here
    bool plans = false;       // they are once `missing` is known
};

class BatchRows {
  public:
    // Fast-path requests of one model alone; `most` bounds the bytes.
    RowsNeeded needed(Request *const *requests, std::size_t count, std::size_t most) noexcept;

    // Writes them, padded to their length; false where an image is left, whose row is zero then.
    bool write(Request *const *requests, std::size_t count, std::uint64_t row_length, unsigned char *to) noexcept;

    // Keeps a plan for a size that was missing. `pool` shares the decoding.
    void keep(const PictureSize &size, const ImagePlan &plan, DecodePool *pool) noexcept;
    std::size_t kept() const noexcept { return plans_.size(); }
    void forget() noexcept { plans_.clear(); }

    // Sizes that `needed` has no plan for.
    std::vector<PictureSize> missing;

  private:
    static std::uint64_t key(std::size_t input, const EncodedImage &image) noexcept;
    const ImagePlan *find(std::size_t input, const EncodedImage &image) const noexcept;

    std::unordered_map<std::uint64_t, ImagePlan> plans_;
    std::vector<BatchedJpeg> jpegs_;
    DecodePool *pool_ = nullptr;
};

}  // namespace ksrv
