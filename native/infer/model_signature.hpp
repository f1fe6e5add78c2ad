// A model's declared inputs and outputs, with which the native server compares requests.

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
    // The dimensions after the first. All are fixed, except for one -1 if rows are padded.
    std::vector<std::int64_t> tail;
    std::uint64_t row_bytes = 0;  // bytes of a row; if rows are padded, of a row of length 1
    ImageRules images;  // encoded images that are accepted as BYTES instead
    bool padded = false;  // rows are padded: one dimension after the first is their length
    bool made = false;    // a mask of the padding, which is generated if a request does not have it
    unsigned char padding[8] = {}, one[8] = {};  // an element of padding; 1, the value of generated masks

    std::uint64_t bytes_of_row(std::uint64_t length) const noexcept {
        return padded ? row_bytes * length : row_bytes;
    }
};

// One version of a model, for the native servers. Constant once the routes have it, except for the counters of
// references and of the sampler. The routes and each request hold a reference.
struct ModelSignature {
    std::atomic<long> refs{1};
    Queue *queue = nullptr;     // kept alive by the endpoint
    void *endpoint = nullptr;   // the Python object that made it, and outlives all other references
    // Callbacks for its fast-path requests; see `Request`.
    void *(*taken)(Request *request) = nullptr;
    void (*answered)(Request *request, void *answer) = nullptr;
    std::string model, version;
    std::vector<InputSignature> inputs;
    std::vector<std::string> outputs;  // empty if the model declares none
    bool has_fields = true;            // plain JSON can name the outputs: all have rows, and no reserved names
    std::vector<std::uint32_t> cut;    // by output: bit k: dimension k is cut to the length of the unpadded row
    std::unique_ptr<LengthBuckets> lengths;  // which rows share batches, if rows are padded
    std::uint64_t max_rows = 0;        // of a batch; 0: the model does not batch
    std::int64_t timeout_ns = 0;       // 0: no timeout
    HeaderLimits limits;
    std::size_t json_limit = 0;        // the most bytes of JSON in a request
    bool nan_literals = false;         // write NaN in JSON answers as Python does
    bool hides_token = false;          // hide the header with the token from the handler
    Sampler sampler;                   // chooses the requests that Python records or runs on another version, too
    // The answer after the deadline: the header fields, and the error message, in which %lld is for the milliseconds,
    // of a request that waited or ran.
    std::string late_fields, late_waiting, late_running;

    void retain() noexcept { refs.fetch_add(1, std::memory_order_relaxed); }
    void release() noexcept {
        if (refs.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
    }
};

}  // namespace ksrv
