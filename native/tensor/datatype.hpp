// The KServe v2 datatypes, and the only checked size computation of the native core.
//
// Strategy: a size is computed here, once, in unsigned 64-bit arithmetic with overflow detection, before any memory is
// accessed. Nothing here allocates, throws or uses Python.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace ksrv {

// A row for each datatype: its name; the C++ type of its numbers in JSON, or void; the bytes of an element, 0 for
// BYTES, whose elements have different lengths; numpy's dtype of arrays, in which BF16 are 16-bit patterns, or ""; the
// name of the type in torch and ONNX, or ""; the number of its field in InferTensorContents, or 0.
#define KSRV_DATATYPES(row)                              \
    row(BOOL, bool, 1, "?", "bool", 1)                   \
    row(UINT8, std::uint8_t, 1, "u1", "uint8", 4)        \
    row(UINT16, std::uint16_t, 2, "<u2", "uint16", 4)    \
    row(UINT32, std::uint32_t, 4, "<u4", "uint32", 4)    \
    row(UINT64, std::uint64_t, 8, "<u8", "uint64", 5)    \
    row(INT8, std::int8_t, 1, "i1", "int8", 2)           \
    row(INT16, std::int16_t, 2, "<i2", "int16", 2)       \
    row(INT32, std::int32_t, 4, "<i4", "int32", 2)       \
    row(INT64, std::int64_t, 8, "<i8", "int64", 3)       \
    row(FP16, void, 2, "<f2", "float16", 0)              \
    row(BF16, void, 2, "<u2", "bfloat16", 0)             \
    row(FP32, float, 4, "<f4", "float32", 6)             \
    row(FP64, double, 8, "<f8", "float64", 7)            \
    row(BYTES, void, 0, "", "", 8)

enum Datatype : int {
    DT_INVALID = -1,
#define KSRV_ROW(name, ...) DT_##name,
    KSRV_DATATYPES(KSRV_ROW)
#undef KSRV_ROW
    DT_COUNT
};

struct DatatypeInfo {
    const char *name;
    std::size_t name_length;
    std::size_t item_size;
    const char *dtype;
    const char *tensor_name;
    int contents;
};

inline constexpr DatatypeInfo DATATYPES[DT_COUNT] = {
#define KSRV_ROW(name, type, size, dtype, tensor, contents) {#name, sizeof #name - 1, size, dtype, tensor, contents},
    KSRV_DATATYPES(KSRV_ROW)
#undef KSRV_ROW
};

template <class Number, class Function> bool call_with(Function &function) noexcept {
    if constexpr (std::is_void_v<Number>) {
        return false;
    } else {
        function(Number());
        return true;
    }
}

// Calls `function` with a 0 of the datatype's C++ type. False if the datatype has no numbers in JSON.
template <class Function> bool with_number(Datatype datatype, Function function) noexcept {
    switch (datatype) {
#define KSRV_ROW(name, type, ...) case DT_##name: return call_with<type>(function);
        KSRV_DATATYPES(KSRV_ROW)
#undef KSRV_ROW
        default: return false;
    }
}

inline Datatype datatype_of(const char *name, std::size_t length) noexcept {
    // Written out, so that the compiler knows each length and expands the comparison.
#define KSRV_ROW(row, ...) \
    if (length == sizeof #row - 1 && std::memcmp(name, #row, sizeof #row - 1) == 0) return DT_##row;
    KSRV_DATATYPES(KSRV_ROW)
#undef KSRV_ROW
    return DT_INVALID;
}

inline std::size_t item_size_of(Datatype datatype) noexcept {
    return datatype < 0 || datatype >= DT_COUNT ? 0 : DATATYPES[datatype].item_size;
}

// Limits for a shape and for a dimension.
inline constexpr int MAX_RANK = 32;
inline constexpr std::int64_t MAX_DIMENSION = 2147483647;

// The number of elements and bytes of a tensor. False if the shape exceeds the limits or 64 bits.
//
// `item_size` is 1 for BYTES, so that only the element count is limited. A zero dimension makes the product zero, but
// the product of the other dimensions must still be below 2^63, so that array libraries can compute strides.
inline bool checked_nbytes(const std::int64_t *shape, std::size_t rank, std::size_t item_size, std::uint64_t *elements,
                           std::uint64_t *nbytes) noexcept {
    if (rank > MAX_RANK) return false;
    std::uint64_t count = 1, total = 0;
    bool empty = false;
    for (std::size_t i = 0; i < rank; ++i) {
        if (shape[i] < 0 || shape[i] > MAX_DIMENSION) return false;
        if (shape[i] == 0)
            empty = true;
        else if (__builtin_mul_overflow(count, static_cast<std::uint64_t>(shape[i]), &count))
            return false;
    }
    if (__builtin_mul_overflow(count, static_cast<std::uint64_t>(item_size), &total) || total > INT64_MAX) return false;
    *elements = empty ? 0 : count;
    *nbytes = empty ? 0 : total;
    return true;
}

// The index of the first byte of a BOOL tensor that is neither 0 nor 1, or `length`.
inline std::size_t find_not_bool(const unsigned char *data, std::size_t length) noexcept {
    unsigned char all = 0;
    for (std::size_t i = 0; i < length; ++i) all |= data[i];
    if (all <= 1) return length;
    std::size_t i = 0;
    while (data[i] <= 1) ++i;
    return i;
}

}  // namespace ksrv
