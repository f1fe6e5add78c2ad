// Decides which requests in plain JSON reach their handler without Python, and reads their numbers.
//
// Two forms of body exist: rows under a key ({"instances": [[1, 2], [3, 4]]} or {"instances": [{"x": 1}, {"x": 2}]}), and
// an object of a model's inputs ({"x": [1, 2]}). Strategy: the body is walked twice, first to find the shape of a row and
// the number of rows, then to read the numbers into the memory after the body. A body that this reader does not
// accept, above all every invalid body, is left to the readers in Python, which accept it or report the error. This
// reader may refuse a body that they accept, but from a body that it accepts they make the same tensors.

#pragma once

#include <string>

#include "infer/fast_request.hpp"

namespace ksrv {

// A form of body, and of its answer.
struct PlainForm {
    int number = 0;      // in Python's list of routes, from 1
    std::string rows;    // the key of a request's rows; empty: the body is an object of the inputs
    std::string answer;  // the key of an answer's rows
};

// Whether the fast path takes the body. If so, fills `layout`; `copy_inputs` then reads the numbers.
bool read_plain_request(const PlainForm &form, const ModelSignature &signature, const unsigned char *body,
                        std::size_t length, FastRequestLayout *layout) noexcept;

// Reads the numbers into the memory after the body. False if they do not all have the shape of the first row.
bool copy_plain_inputs(const ModelSignature &signature, const FastRequestLayout &layout, unsigned char *body) noexcept;

}  // namespace ksrv
