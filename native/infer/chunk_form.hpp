// Writes the chunks of a stream whose answers differ only in one value: a text, or numbers of one shape.
//
// Strategy: the front end renders one answer with a mark in place of the value. The bytes around the mark are the form
// of all further chunks. A value is written byte for byte as the general renderer writes it. C++ without Python.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tensor/datatype.hpp"

namespace ksrv {

enum class ChunkKind : int {
    json_value,    // a text, or one number
    json_array,    // numbers in brackets
    grpc_message,  // a ModelStreamInferResponse with its prefix
};

struct ChunkForm {
    ChunkKind kind = ChunkKind::json_value;
    Datatype datatype = DT_BYTES;
    std::uint64_t count = 0;  // of the numbers in the value
    // Of JSON, the bytes before the value and after each of its occurrences. Of a message, the ModelInferResponse
    // without raw_output_contents.
    std::vector<std::string> pieces;

    // Whether the value can be written: JSON needs UTF-8, and numbers have a fixed size.
    bool fits(const unsigned char *data, std::size_t length) const noexcept;
    // Appends the chunk of a value that fits.
    void put(std::string *out, const unsigned char *data, std::size_t length) const;

  private:
    void put_message(std::string *out, const unsigned char *data, std::size_t length) const;
};

}  // namespace ksrv
