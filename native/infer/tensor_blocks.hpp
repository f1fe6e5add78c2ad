// The tensor blocks behind the JSON header: which bytes of the body belong to which input.
//
// Strategy: one pass over the inputs in their order. A size comes from the shape or from the client;
// where both speak they must agree, and the sizes together must use up the body to the byte. Nothing
// here allocates, throws or knows Python.

#pragma once

#include "infer/infer_header.hpp"

namespace ksrv {

// Gives every input without JSON data its block of the body, whose header is `json_length` long.
HeaderError split_blocks(InferHeader *header, std::size_t json_length, std::size_t body_length,
                         HeaderFault *fault) noexcept;

// The index of the first byte that is neither 0 nor 1, or `length`.
std::size_t find_not_bool(const unsigned char *data, std::size_t length) noexcept;

}  // namespace ksrv
