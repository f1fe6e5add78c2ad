// Numbers as the text of a JSON array.
//
// Strategy: the shortest digits that read back as the same value, laid out as orjson lays them out, so that an
// answer is the same text whichever of the two wrote it. Digits of FP32 are found with a few operations on
// doubles; std::to_chars finds those of FP64, and decides where the doubles are too coarse. NaN and the
// infinities, which JSON does not know, are null.

#pragma once

#include <cstddef>
#include <cstdint>

#include "base/text_writer.hpp"
#include "tensor/datatype.hpp"

namespace ksrv {

// The most bytes that one value takes with the comma behind it; 0 for a datatype that JSON does not carry.
std::size_t json_value_bytes(Datatype datatype) noexcept;

// Writes `count` values with their brackets. The datatype is one that JSON carries.
void put_numbers(TextWriter &out, Datatype datatype, const unsigned char *data, std::uint64_t count) noexcept;

// Whether no value is NaN or infinite.
bool all_finite(Datatype datatype, const unsigned char *data, std::uint64_t count) noexcept;

}  // namespace ksrv
