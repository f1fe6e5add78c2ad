// Reads the JSON header of an infer request, strictly and in one pass.
//
// Strategy: a recursive-descent reader whose nesting is that of the protocol, not of the client;
// whatever else the client nests is skipped without recursion. Every size goes through
// `checked_nbytes`, every count is bounded while it grows, and nothing is allocated that the
// received bytes do not pay for.
//
// Decisions where RFC 8259 leaves a choice: a key that the protocol knows, and a parameter's name,
// may stand once in its object; unknown keys are checked and skipped; null means absent. Plain C++
// without Python, so that an I/O thread can call it without the GIL and a fuzzer can drive it.

#pragma once

#include "infer/infer_header.hpp"

namespace ksrv {

// Reads the JSON header in `data[0:length]`. On a fault `*fault` says which one and where.
HeaderError scan_infer_header(const char *data, std::size_t length, const HeaderLimits &limits,
                              InferHeader *header, HeaderFault *fault) noexcept;

}  // namespace ksrv
