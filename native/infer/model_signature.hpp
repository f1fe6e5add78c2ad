// The declared inputs and outputs of a model, as the native server checks them.

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "images/image_input.hpp"
#include "infer/infer_header.hpp"
#include "infer/sampler.hpp"
#include "tensor/padding.hpp"

namespace ksrv {

class Queue;
struct Request;

struct InputSignature {
    std::string name;
    Datatype datatype = DT_INVALID;
    // The dimensions behind the first. All of them are fixed, but for one of -1 where rows are padded.
    std::vector<std::int64_t> tail;
    std::uint64_t row_bytes = 0;  // where rows are padded: for a length of 1
    ImageRules images;  // encoded images that are taken as BYTES in its place
    bool padded = false;  // one of its dimensions is the length of the rows
    bool made = false;    // a mask, which is made where a request leaves it out
    unsigned char padding[8] = {}, one[8] = {};  // an element of its padding, and of a mask that is made

    std::uint64_t bytes_of_row(std::uint64_t length) const noexcept {
        return padded ? row_bytes * length : row_bytes;
    }
};

// One version of a model as the HTTP server knows it. Counted: the routes and each request hold it.
struct ModelSignature {
    std::atomic<long> refs{1};
    Queue *queue = nullptr;     // held by the endpoint
    void *endpoint = nullptr;   // the Python object that made it, which outlives its other holders
    // Called for its fast-path requests; see `Request`.
    void *(*taken)(Request *request) = nullptr;
    void (*answered)(Request *request, void *answer) = nullptr;
    std::string model, version;
    std::vector<InputSignature> inputs;
    std::vector<std::string> outputs;  // none where the model declares none
    std::vector<std::uint32_t> cut;    // for each output a bit for each dimension that is the length of the rows
    std::unique_ptr<LengthBuckets> lengths;  // where rows are padded: which are joined
    std::uint64_t max_rows = 0;        // of a batch; 0: requests are not joined
    std::int64_t timeout_ns = 0;       // 0: none
    HeaderLimits limits;
    std::size_t json_limit = 0;
    bool nan_literals = false;         // NaN in JSON answers is Python's word for it
    bool hides_token = false;          // whether a handler must not see the header that holds a token
    Sampler recorded;                  // chooses the requests that Python shall record
    // The answer past the deadline: {prefix}{milliseconds}{waiting or running}.
    std::string late_status, late_fields, late_prefix, late_waiting, late_running;

    void retain() noexcept { refs.fetch_add(1, std::memory_order_relaxed); }
    void release() noexcept {
        if (refs.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
    }
};

}  // namespace ksrv
