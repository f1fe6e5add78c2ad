// Writes numbers as the text of a JSON array.
//
// Strategy: std::to_chars finds the shortest digits that read back as the same value. They are laid out as orjson does,
// so that an answer has the same text whether Python (with orjson) or this function wrote it. Integral values, which
// are frequent, are written as integers, which is faster. NaN and infinities, which JSON cannot represent, become null.

#pragma once

#include <cstddef>
#include <cstdint>

#include "base/text_writer.hpp"
#include "tensor/datatype.hpp"

namespace ksrv {

// The most bytes of one value and the comma after it. 0 for a datatype that JSON cannot represent.
std::size_t json_value_bytes(Datatype datatype) noexcept;

// Writes `count` values with their brackets. JSON must be able to represent the datatype.
void put_numbers(TextWriter &out, Datatype datatype, const unsigned char *data, std::uint64_t count) noexcept;

// Writes nested arrays of a shape, and of no dimensions one value. `first` replaces the first dimension unless negative.
void put_nested(TextWriter &out, Datatype datatype, const unsigned char *data, const std::ptrdiff_t *shape, int rank,
                std::int64_t first = -1) noexcept;

// Whether no value is NaN or infinite.
bool all_finite(Datatype datatype, const unsigned char *data, std::uint64_t count) noexcept;

}  // namespace ksrv
