// Reads the elements of BYTES tensors: length-prefixed, bare, or with a list of sizes.
//
// An element is preceded by its length in four little-endian bytes (the binary tensor data extension of KServe v2),
// unless the request lists the sizes of its elements. A single image may also be the whole buffer, without a length.
//
// Strategy: a first pass checks every length in the received bytes. Only then does the caller allocate, once. Nothing
// here allocates, throws or uses Python.

#pragma once

#include <cstddef>
#include <cstdint>

namespace ksrv {

inline constexpr std::size_t PREFIX_BYTES = 4;

// Why a walk over length-prefixed elements failed.
struct ElementFault {
    std::uint64_t index = 0;      // the element
    std::uint64_t offset = 0;     // of the length prefix
    std::uint64_t claimed = 0;    // the length in the prefix
    std::uint64_t remaining = 0;  // bytes after the prefix, or after the last element
    bool short_prefix = false;    // fewer than four bytes are left for the prefix
    bool trailing = false;        // bytes remain after all elements
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

// Whether exactly `count` prefixed elements use up exactly `length` bytes.
bool walk_prefixed(const unsigned char *data, std::size_t length, std::uint64_t count, ElementFault *fault) noexcept;

// Decides how to read the bytes of a BYTES tensor without a size list.
//
// A bare image of just the right size also passes the prefixed walk. It is recognised because the buffer begins with an
// image signature, and "element 0" does not.
BytesForm bytes_form(const unsigned char *data, std::size_t length, std::uint64_t count,
                     bool is_image, ElementFault *fault) noexcept;

}  // namespace ksrv
