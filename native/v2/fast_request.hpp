// Which infer requests need no Python before their handler.
//
// Strategy: the header is read by the one reader that every route has, and what was read is compared
// with the model's signature. The fast path takes a request when nothing about it is left to decide: binary
// inputs of the declared names, datatypes and shapes, aligned, in the declared order; binary outputs
// that the model has; no parameters but the binary ones and a timeout. Everything else, wrong
// requests above all, is left to the general way, which says what is wrong with them.

#pragma once

#include <cstddef>
#include <cstdint>

#include "v2/model_signature.hpp"

namespace ksrv {

constexpr int FAST_INPUTS = 4;
constexpr int FAST_OUTPUTS = 8;

struct FastRequestLayout {
    std::size_t id_offset = 0, id_length = 0;  // in the body
    std::uint32_t rows = 0;
    std::size_t offsets[FAST_INPUTS] = {};    // of the inputs, in the body
    std::uint64_t timeout_us = 0;
    std::uint8_t wanted_count = 0;             // 0: all outputs
    std::uint8_t wanted[FAST_OUTPUTS] = {};   // their places in ModelSignature::outputs
};

// Whether the fast path takes the body; then `layout` says where its parts are.
bool read_fast_request(const ModelSignature &signature, const unsigned char *body, std::size_t body_length,
                std::size_t json_length, FastRequestLayout *layout) noexcept;

}  // namespace ksrv
