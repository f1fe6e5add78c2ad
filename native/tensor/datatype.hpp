// The KServe v2 datatypes, and the only checked size computation of the native core.
//
// Strategy: a size is computed here, once, in unsigned 64-bit arithmetic with overflow detection, before any memory is
// accessed. Nothing here allocates, throws or uses Python.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace ksrv {

enum Datatype : int {
    DT_INVALID = -1,
    DT_BOOL = 0,
    DT_UINT8,
    DT_UINT16,
    DT_UINT32,
    DT_UINT64,
    DT_INT8,
    DT_INT16,
    DT_INT32,
    DT_INT64,
    DT_FP16,
    DT_BF16,
    DT_FP32,
    DT_FP64,
    DT_BYTES,
    DT_COUNT
};

struct DatatypeInfo {
    const char *name;
    std::size_t name_length;
    std::size_t item_size;  // 0 for BYTES, whose elements have different lengths
};

inline constexpr DatatypeInfo DATATYPES[DT_COUNT] = {
    {"BOOL", 4, 1},  {"UINT8", 5, 1}, {"UINT16", 6, 2}, {"UINT32", 6, 4}, {"UINT64", 6, 8},
    {"INT8", 4, 1},  {"INT16", 5, 2}, {"INT32", 5, 4},  {"INT64", 5, 8},  {"FP16", 4, 2},
    {"BF16", 4, 2},  {"FP32", 4, 4},  {"FP64", 4, 8},   {"BYTES", 5, 0},
};

inline Datatype datatype_of(const char *name, std::size_t length) noexcept {
    for (int i = 0; i < DT_COUNT; ++i) {
        if (DATATYPES[i].name_length == length && std::memcmp(DATATYPES[i].name, name, length) == 0)
            return static_cast<Datatype>(i);
    }
    return DT_INVALID;
}

inline std::size_t item_size_of(Datatype datatype) noexcept {
    return datatype < 0 || datatype >= DT_COUNT ? 0 : DATATYPES[datatype].item_size;
}

// Limits for a shape and for a dimension.
inline constexpr int MAX_RANK = 32;
inline constexpr std::int64_t MAX_DIMENSION = 2147483647;

enum SizeError : int {
    SIZE_OK = 0,
    SIZE_RANK,       // too many dimensions
    SIZE_NEGATIVE,   // a dimension is negative
    SIZE_DIMENSION,  // a dimension exceeds 2^31 - 1
    SIZE_OVERFLOW,   // the product exceeds the limit or 64 bits
};

struct SizeLimits {
    std::size_t rank = 32;
    std::int64_t dimension = 2147483647;
    std::uint64_t bytes = UINT64_MAX;
};

// The number of elements and bytes of a tensor.
//
// `item_size` is 1 for BYTES, so that only the element count is limited. A zero dimension makes the product zero, but
// the product of the other dimensions must still be below 2^63, so that array libraries can compute strides. On error
// `*where` is the index of the faulty dimension, and the outputs are unchanged.
inline SizeError checked_nbytes(const std::int64_t *shape, std::size_t rank, std::size_t item_size,
                                const SizeLimits &limits, std::uint64_t *elements,
                                std::uint64_t *nbytes, std::size_t *where) noexcept {
    if (rank > limits.rank) {
        *where = limits.rank;
        return SIZE_RANK;
    }
    std::uint64_t count = 1;
    bool empty = false, overflow = false;
    std::size_t overflow_at = 0;
    for (std::size_t i = 0; i < rank; ++i) {
        if (shape[i] < 0) {
            *where = i;
            return SIZE_NEGATIVE;
        }
        if (shape[i] > limits.dimension) {
            *where = i;
            return SIZE_DIMENSION;
        }
        if (shape[i] == 0) empty = true;
        if (!overflow && shape[i] != 0 &&
            __builtin_mul_overflow(count, static_cast<std::uint64_t>(shape[i]), &count)) {
            overflow = true;
            overflow_at = i;
        }
    }
    std::uint64_t total = 0;
    if (!overflow && (__builtin_mul_overflow(count, static_cast<std::uint64_t>(item_size), &total) ||
                      total > static_cast<std::uint64_t>(INT64_MAX))) {
        overflow = true;
        overflow_at = rank ? rank - 1 : 0;
    }
    if (overflow) {
        *where = overflow_at;
        return SIZE_OVERFLOW;
    }
    if (empty) {
        *elements = 0;
        *nbytes = 0;
        return SIZE_OK;
    }
    if (total > limits.bytes) {
        *where = rank ? rank - 1 : 0;
        return SIZE_OVERFLOW;
    }
    *elements = count;
    *nbytes = total;
    return SIZE_OK;
}

}  // namespace ksrv
