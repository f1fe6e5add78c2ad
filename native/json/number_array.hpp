// The numbers of a JSON tensor, flat or nested, straight into typed memory.
//
// Strategy: one pass, no recursion; brackets only raise and lower a level, so ragged nesting is
// judged by the count alone, as everywhere in the protocol's family. Digits are gathered eight at a
// time. A real number of at most 19 digits is multiplied by a power of ten of 64 bits and rounded
// once; where that rounding could differ from the correct one, and for everything else,
// std::from_chars decides. Integers are exact over their whole range and range-checked. NaN,
// Infinity and -Infinity are accepted for real datatypes, a number that no finite value is near
// (1e400) never becomes one of them.
//
// Nothing here allocates, throws or knows Python.

#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/datatype.hpp"

namespace ksrv {

enum NumbersFault : int {
    NUMBERS_OK = 0,
    NUMBERS_SYNTAX,
    NUMBERS_END,
    NUMBERS_KIND,      // a value of another kind: null, a string, true where a number belongs
    NUMBERS_FRACTION,  // a fraction or exponent where an integer belongs
    NUMBERS_RANGE,     // outside the datatype's range
    NUMBERS_DATATYPE,  // not a datatype that JSON can carry
};

struct NumbersResult {
    NumbersFault error = NUMBERS_OK;
    std::size_t offset = 0;   // of the fault
    std::uint64_t count = 0;  // values read, and so the index of the value at fault
};

// Reads the JSON array `data[0:length]` into at most `capacity` values at `out`. All values are
// counted and checked, also those beyond the capacity.
NumbersFault read_numbers(const char *data, std::size_t length, Datatype datatype, void *out,
                          std::uint64_t capacity, NumbersResult *result) noexcept;

}  // namespace ksrv
