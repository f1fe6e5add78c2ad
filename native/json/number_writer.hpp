// Writes numbers as the text of a JSON array.
//
// Strategy: the shortest digits that read back as the same value, in orjson's layout, so that an answer is the same
// text whichever of the two wrote it. Digits of FP32 are found with a few operations on doubles. std::to_chars finds
// the digits of FP64, and of FP32 values for which doubles are too coarse. NaN and infinities, which JSON cannot
// represent, become null.

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

// Whether no value is NaN or infinite.
bool all_finite(Datatype datatype, const unsigned char *data, std::uint64_t count) noexcept;

}  // namespace ksrv
