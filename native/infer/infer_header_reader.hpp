// Reads the body of an infer request: the JSON header, strictly and in one pass, and the tensors after it.
//
// Strategy: a recursive-descent reader for the few levels of nesting that the protocol defines. Other nested values are
// skipped without recursion, so that no client can exhaust the stack. Every size is computed by `checked_nbytes`, every
// count is checked while it grows, and memory grows only in proportion to the received bytes.
//
// Choices that RFC 8259 allows: a key of the protocol, and the name of a parameter, may occur once in an object;
// unknown keys are checked and skipped; null means absent. C++ without Python, so that an I/O thread can call it
// without the GIL and a fuzzer can drive it.

#pragma once

#include "infer/infer_header.hpp"

namespace ksrv {

// Reads the first `json_length` bytes of `body` as the JSON header, and finds the tensors in the bytes after it. On
// failure, `*fault` describes the fault and its position.
HeaderError read_infer_header(const char *body, std::size_t json_length, std::size_t body_length,
                              const HeaderLimits &limits, InferHeader *header, HeaderFault *fault) noexcept;

}  // namespace ksrv
