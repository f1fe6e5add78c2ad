// The elements of BYTES tensors: prefixed, bare or size-listed, decided by one rule.
//
// Strategy: every length is checked in a first pass over the received bytes, and only then does the
// caller allocate, once. Nothing here allocates, throws or knows Python. The rule is that of the
// protocol notes: sizes if a list is given, else a strict walk of length-prefixed elements, else,
// for one image, the whole buffer.

#pragma once

#include <cstddef>
#include <cstdint>

namespace ksrv {

inline constexpr std::size_t PREFIX_BYTES = 4;

// Where a walk over prefixed elements went wrong.
struct ElementFault {
    std::uint64_t index = 0;      // the element
    std::uint64_t offset = 0;     // of its length prefix
    std::uint64_t claimed = 0;    // the length that the prefix claims
    std::uint64_t remaining = 0;  // bytes behind the prefix, or behind the last element
    bool short_prefix = false;    // fewer than four bytes were left for the prefix
    bool trailing = false;        // all elements were read, and bytes remain
};

enum BytesForm : int {
    BYTES_INVALID = 0,
    BYTES_PREFIXED,  // exactly `count` prefixed elements use up the buffer
    BYTES_BARE,      // the whole buffer is the only element
};

inline std::uint32_t element_length(const unsigned char *prefix) noexcept {
    return static_cast<std::uint32_t>(prefix[0]) | static_cast<std::uint32_t>(prefix[1]) << 8 |
           static_cast<std::uint32_t>(prefix[2]) << 16 | static_cast<std::uint32_t>(prefix[3]) << 24;
}

inline void write_element_length(unsigned char *prefix, std::uint32_t length) noexcept {
    prefix[0] = static_cast<unsigned char>(length);
    prefix[1] = static_cast<unsigned char>(length >> 8);
    prefix[2] = static_cast<unsigned char>(length >> 16);
    prefix[3] = static_cast<unsigned char>(length >> 24);
}

// Tells whether exactly `count` prefixed elements use up exactly `length` bytes.
bool walk_prefixed(const unsigned char *data, std::size_t length, std::uint64_t count,
                   ElementFault *fault) noexcept;

// Decides how the bytes of a BYTES tensor without a size list are to be read.
//
// A bare image of just the right size also passes the prefixed walk; it is told apart because it
// begins like an image while its "element 0" does not.
BytesForm bytes_form(const unsigned char *data, std::size_t length, std::uint64_t count,
                     bool is_image, ElementFault *fault) noexcept;

}  // namespace ksrv
