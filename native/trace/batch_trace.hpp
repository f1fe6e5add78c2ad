// The spans of a batch whose requests are traced.
//
// Every traced request has a server span, a child of the caller's span: it begins when the request is queued and ends
// with the answer. Its child `ksrv.queue` is the time in the queue. The span `ksrv.batch` is a child of the first traced
// request, and has the stages as children. It links to the other requests, and they link to it.
//
// Strategy: ids and texts are stored when a batch is taken. Its spans are encoded once, when its requests have ended,
// from the times that requests and batches have anyway.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "queue/request.hpp"
#include "queue/stats.hpp"
#include "trace/span_log.hpp"

namespace ksrv {

// Which requests of a model version are traced.
struct TraceRules {
    std::string model, version;
    std::atomic<std::uint64_t> rate{1};   // one of so many requests without a caller's span is traced; 0: no request
    std::atomic<std::uint64_t> seen{0};   // requests that `rate` has counted
};

struct TracedRequest {
    std::size_t index = 0;  // in the batch
    unsigned char trace[16] = {}, span[8] = {}, parent[8] = {};
    bool has_parent = false;
    std::string state, id;           // of tracestate and x-request-id
    std::string error, error_class;  // empty if the request did not fail
};

// The times and sizes of a batch. Times are on the monotonic clock.
struct TracedRun {
    std::int64_t taken_ns = 0;              // when it left the queue
    std::int64_t began_ns = 0, ended_ns = 0;  // when its handler ran
    std::uint64_t rows = 0;
    const ReplyStage *stages = nullptr;     // begins with the assembly
    int stage_count = 0;
};

class BatchTrace {
  public:
    // Adds a request if it is traced. Not traced if memory is short.
    //
    // Args:
    // head: Lines with `traceparent`, `tracestate` and `x-request-id`, among others.
    void add(TraceRules &rules, std::size_t index, const char *head, std::size_t length) noexcept;

    bool empty() const noexcept { return traced.empty(); }

    // Notes the failure of a request, or of the batch if `index` is NOWHERE.
    void fail(std::size_t index, std::string_view message, std::string_view error_class);

    // Adds the spans to the log. `requests` are all requests of the batch.
    void end(const TraceRules &rules, const Request *const *requests, std::size_t count,
             const TracedRun &run) noexcept;

    std::vector<TracedRequest> traced;
    unsigned char span[8] = {};       // of the batch
    std::string more;                 // encoded fields that the handler added to the batch's span
    std::string error, error_class;   // of the batch
};

}  // namespace ksrv
