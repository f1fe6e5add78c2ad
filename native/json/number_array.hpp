// Reads the numbers of a JSON tensor, flat or nested, directly into typed memory.
//
// Strategy: one pass without recursion. Brackets only change a level, so that ragged nesting is checked only by the
// number of values, as in other servers of the protocol. Digits are processed eight at a time. A real number of at most
// 19 digits is multiplied by a 64-bit power of ten and rounded once. If that rounding could differ from the correct
// rounding, and for all other numbers, std::from_chars is used. Integers are exact over their whole range and
// range-checked. NaN, Infinity and -Infinity are accepted for real datatypes. A number too large for a finite value
// (1e400) is an error.
//
// Nothing here allocates, throws or uses Python.

#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/datatype.hpp"

namespace ksrv {

enum NumbersFault : int {
    NUMBERS_OK = 0,
    NUMBERS_SYNTAX,    // no JSON, or no array
    NUMBERS_END,       // the text ends within the array
    NUMBERS_KIND,      // null, a string or true instead of a number
    NUMBERS_FRACTION,  // a fraction or exponent, but the datatype is an integer
    NUMBERS_RANGE,     // outside the datatype's range
    NUMBERS_DATATYPE,  // the datatype cannot be represented in JSON
};

struct NumbersResult {
    NumbersFault error = NUMBERS_OK;
    std::size_t offset = 0;   // of the fault
    std::uint64_t count = 0;  // values read, which is the index of the faulty value
};

// Reads the JSON array `data[0:length]` into at most `capacity` values at `out`. Values beyond the capacity are still
// counted and checked.
NumbersFault read_numbers(const char *data, std::size_t length, Datatype datatype, void *out,
                          std::uint64_t capacity, NumbersResult *result) noexcept;

// The dimensions of a JSON value: none for a number.
struct NestedShape {
    bool known = false;
    std::size_t rank = 0;
    std::uint64_t sizes[MAX_RANK] = {};
};

// Reads a number, or nested arrays of one shape, from the JSON value at `at` into at most `capacity` values at `out`.
// Sets `shape`, or compares it if it is known. The byte before `end` must be a bracket or brace outside of the value, so
// that no token reaches `end`.
//
// Returns the end of the value. Null if its shape is ragged, empty or different, or if a value is not a finite number,
// or a negative zero (orjson reads -0 as the integer 0).
const char *read_nested(const char *at, const char *end, Datatype datatype, void *out, std::uint64_t capacity,
                        NestedShape *shape) noexcept;

}  // namespace ksrv
