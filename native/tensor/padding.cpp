#include "tensor/padding.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace ksrv {

namespace {

// With less waste, each of the first thousand buckets would have only one length, so the table of buckets would only
// cost time.
constexpr double LEAST_WASTE = 0.001;

std::size_t bytes_of(const std::int64_t *shape, std::size_t rank, std::size_t item_size) noexcept {
    std::size_t nbytes = item_size;
    for (std::size_t i = 0; i < rank; ++i) nbytes *= static_cast<std::size_t>(shape[i]);
    return nbytes;
}

// The number of dimensions up to the last that differs. The dimensions after it are copied together.
std::size_t differing(const std::int64_t *a, const std::int64_t *b, std::size_t rank) noexcept {
    while (rank > 0 && a[rank - 1] == b[rank - 1]) --rank;
    return rank;
}

// Fills `nbytes` with copies of an element. Each step doubles the filled part.
void fill_elements(unsigned char *to, std::size_t nbytes, const unsigned char *element,
                   std::size_t item_size) noexcept {
    if (nbytes == 0) return;
    if (std::all_of(element, element + item_size, [&](unsigned char byte) { return byte == element[0]; })) {
        std::memset(to, element[0], nbytes);
        return;
    }
    std::memcpy(to, element, item_size);
    for (std::size_t filled = item_size; filled < nbytes;) {
        const std::size_t more = std::min(filled, nbytes - filled);
        std::memcpy(to + filled, to, more);
        filled += more;
    }
}

}  // namespace

LengthBuckets::LengthBuckets(std::uint32_t multiple, double waste, std::uint32_t most)
    : multiple_(std::max<std::uint32_t>(multiple, 1)), most_(most) {
    if (waste < LEAST_WASTE) return;
    const double kept = 1.0 - std::min(waste, 0.99);
    for (std::uint64_t first = 1; first <= units(most_);) {
        first_.push_back(first);
        // The bucket's last length is the largest that makes `first` at least the share `kept` of it. 1e-9 corrects
        // rounding.
        const double last = std::floor(static_cast<double>(first) / kept + 1e-9);
        first = std::max(first, static_cast<std::uint64_t>(last)) + 1;
    }
}

std::uint64_t LengthBuckets::padded(std::uint64_t length) const noexcept {
    return std::max(length, std::min(units(length) * multiple_, most_));
}

std::uint64_t LengthBuckets::bucket(std::uint64_t length) const noexcept {
    const std::uint64_t count = units(length);
    if (first_.empty()) return count;
    return static_cast<std::uint64_t>(std::upper_bound(first_.begin(), first_.end(), count) - first_.begin());
}

void copy_padded(const unsigned char *from, const std::int64_t *from_shape, unsigned char *to,
                 const std::int64_t *to_shape, std::size_t rank, const unsigned char *element,
                 std::size_t item_size) noexcept {
    const std::size_t outer = differing(from_shape, to_shape, rank);
    if (outer <= 1) {
        const std::size_t nbytes = bytes_of(from_shape, rank, item_size);
        if (nbytes > 0) std::memcpy(to, from, nbytes);
        fill_elements(to + nbytes, bytes_of(to_shape, rank, item_size) - nbytes, element, item_size);
        return;
    }
    const std::size_t from_step = bytes_of(from_shape + 1, rank - 1, item_size);
    const std::size_t to_step = bytes_of(to_shape + 1, rank - 1, item_size);
    if (to_step == 0) return;  // without values, other dimensions may be arbitrarily large
    for (std::int64_t i = 0; i < from_shape[0]; ++i, from += from_step, to += to_step)
        copy_padded(from, from_shape + 1, to, to_shape + 1, rank - 1, element, item_size);
    fill_elements(to, static_cast<std::size_t>(to_shape[0] - from_shape[0]) * to_step, element, item_size);
}

void copy_cut(const unsigned char *from, const std::int64_t *from_shape, unsigned char *to,
              const std::int64_t *to_shape, std::size_t rank, std::size_t item_size) noexcept {
    const std::size_t outer = differing(from_shape, to_shape, rank);
    if (outer <= 1) {
        const std::size_t nbytes = bytes_of(to_shape, rank, item_size);
        if (nbytes > 0) std::memcpy(to, from, nbytes);
        return;
    }
    const std::size_t from_step = bytes_of(from_shape + 1, rank - 1, item_size);
    const std::size_t to_step = bytes_of(to_shape + 1, rank - 1, item_size);
    if (to_step == 0) return;  // as in `copy_padded`
    for (std::int64_t i = 0; i < to_shape[0]; ++i, from += from_step, to += to_step)
        copy_cut(from, from_shape + 1, to, to_shape + 1, rank - 1, item_size);
}

void fill_mask(unsigned char *to, std::int64_t rows, std::size_t length, std::size_t padded_length,
               const unsigned char *value, const unsigned char *padding, std::size_t item_size) noexcept {
    const std::size_t valued = length * item_size, row_bytes = padded_length * item_size;
    for (std::int64_t row = 0; row < rows; ++row, to += row_bytes) {
        fill_elements(to, valued, value, item_size);
        fill_elements(to + valued, row_bytes - valued, padding, item_size);
    }
}

}  // namespace ksrv
