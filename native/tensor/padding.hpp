// Rows of different lengths in one batch: which rows share a batch, and how they are padded and cut back.
//
// Strategy: lengths are rounded up to a multiple and divided into buckets, so that padding to the longest length of a
// bucket adds at most a given share. Requests of the same bucket are batched together, and padded to the longest row of
// the batch.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ksrv {

// The batch key of a request whose rows have one length is FIRST_LENGTH_KEY + 4 * bucket, plus a number below 4 for
// other differences between requests.
constexpr std::uint64_t FIRST_LENGTH_KEY = std::uint64_t{1} << 61;

// Which lengths share a batch. Throws only in the constructor.
class LengthBuckets {
  public:
    // `waste`: the largest share of padding in a row, in addition to rounding up to `multiple`. Lengths are at most
    // `most`.
    LengthBuckets(std::uint32_t multiple, double waste, std::uint32_t most);
    LengthBuckets(const LengthBuckets &) = default;

    // The padded row length of a batch whose longest row has this length.
    std::uint64_t padded(std::uint64_t length) const noexcept;

    // Rows of the same bucket may share a batch.
    std::uint64_t bucket(std::uint64_t length) const noexcept;

  private:
    std::uint64_t units(std::uint64_t length) const noexcept { return (length + multiple_ - 1) / multiple_; }

    std::uint64_t multiple_, most_;
    // The first length of each bucket, in units of `multiple_`. Empty if only lengths of the same unit share a batch.
    std::vector<std::uint64_t> first_;
};

// Copies a tensor into the corner of a tensor that is at least as large in each dimension, and fills the rest with
// `element`. Both are contiguous.
void copy_padded(const unsigned char *from, const std::int64_t *from_shape, unsigned char *to,
                 const std::int64_t *to_shape, std::size_t rank, const unsigned char *element,
                 std::size_t item_size) noexcept;

// Copies the corner of a tensor that is at least as large in each dimension. Both are contiguous.
void copy_cut(const unsigned char *from, const std::int64_t *from_shape, unsigned char *to,
              const std::int64_t *to_shape, std::size_t rank, std::size_t item_size) noexcept;

// Writes rows of a mask: `length` times `value`, then padding up to `padded_length`.
void fill_mask(unsigned char *to, std::int64_t rows, std::size_t length, std::size_t padded_length,
               const unsigned char *value, const unsigned char *padding, std::size_t item_size) noexcept;

}  // namespace ksrv
