// The tensor blocks after the JSON header: which bytes of the body belong to which input.
//
// Strategy: one pass over the inputs in order. A size is derived from the shape or given by the client. If both exist
// they must agree, and the sizes together must use up the body exactly. Nothing here allocates, throws or uses Python.

#pragma once

#include "infer/infer_header.hpp"

namespace ksrv {

// Assigns a block of the body to every input without JSON data. The header is `json_length` bytes long.
HeaderError split_blocks(InferHeader *header, std::size_t json_length, std::size_t body_length,
                         HeaderFault *fault) noexcept;

// The index of the first byte that is neither 0 nor 1, or `length`.
std::size_t find_not_bool(const unsigned char *data, std::size_t length) noexcept;

}  // namespace ksrv
