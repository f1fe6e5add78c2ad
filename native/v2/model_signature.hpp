// What the native server knows of one version of a model.

#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "v2/infer_header.hpp"

namespace ksrv {

class Queue;
struct Entry;

struct PlainInput {
    std::string name;
    Datatype datatype = DT_INVALID;
    std::vector<std::int64_t> tail;  // the dimensions behind the first, all of them fixed
    std::uint64_t row_bytes = 0;
};

// What an HTTP server knows of one version of a model. It is counted: the routes and each request hold it.
struct ModelSignature {
    std::atomic<long> refs{1};
    Queue *queue = nullptr;  // held by whoever made the signature
    void *endpoint = nullptr;    // the Python object behind it, which outlives the signature's other holders
    // What entries of its plain requests call; see `Entry`.
    void *(*taken)(Entry *entry) = nullptr;
    void (*answered)(Entry *entry, void *answer) = nullptr;
    std::string model, version;
    std::vector<PlainInput> inputs;
    std::vector<std::string> outputs;  // none where the model declares none
    std::uint64_t max_rows = 0;        // of a batch; 0: requests are not joined
    std::int64_t timeout_ns = 0;       // 0: none
    HeaderLimits limits;
    std::size_t json_limit = 0;
    // The answer past the deadline: {prefix}{milliseconds}{waiting or running}.
    std::string late_status, late_fields, late_prefix, late_waiting, late_running;

    void retain() noexcept { refs.fetch_add(1, std::memory_order_relaxed); }
    void release() noexcept {
        if (refs.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
    }
};

}  // namespace ksrv
