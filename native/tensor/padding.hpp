// Rows of different lengths in one batch: which of them are joined, and how they are padded and cut back.
//
// Strategy: lengths are rounded up to a multiple and fall into buckets, the longest of which is padded by no more
// than a given share. Requests of one bucket are joined, and padded to the longest of the batch.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ksrv {

// The batch key of a request whose rows have one length, in the bucket `n`, is FIRST_LENGTH_KEY + 4 n; what else tells
// requests apart is added to it.
constexpr std::uint64_t FIRST_LENGTH_KEY = std::uint64_t{1} << 61;

// Which lengths are joined. Throws only while it is made.
class LengthBuckets {
  public:
    // `waste`: the largest share of padding in a row, beyond what `multiple` adds. Lengths are at most `most`.
    LengthBuckets(std::uint32_t multiple, double waste, std::uint32_t most);

    // The length that a batch has whose longest row has this one.
    std::uint64_t padded(std::uint64_t length) const noexcept;

    // Rows of equal buckets are joined.
    std::uint64_t bucket(std::uint64_t length) const noexcept;

  private:
    std::uint64_t units(std::uint64_t length) const noexcept { return (length + multiple_ - 1) / multiple_; }

    std::uint64_t multiple_, most_;
    std::vector<std::uint64_t> first_;  // of each bucket; none where only equal lengths are joined
};

// Copies a tensor into the corner of one that is as large or larger in each dimension, and fills the rest with an
// element. Both are contiguous.
void copy_padded(const unsigned char *from, const std::int64_t *from_shape, unsigned char *to,
                 const std::int64_t *to_shape, std::size_t rank, const unsigned char *element,
                 std::size_t item_size) noexcept;

// Copies the corner of a tensor that is as large or larger in each dimension. Both are contiguous.
void copy_cut(const unsigned char *from, const std::int64_t *from_shape, unsigned char *to,
              const std::int64_t *to_shape, std::size_t rank, std::size_t item_size) noexcept;

// Writes rows of a mask: `length` times `value`, and padding up to `padded_length`.
void fill_mask(unsigned char *to, std::int64_t rows, std::size_t length, std::size_t padded_length,
               const unsigned char *value, const unsigned char *padding, std::size_t item_size) noexcept;

}  // namespace ksrv
