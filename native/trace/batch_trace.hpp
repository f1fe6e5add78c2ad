// The spans of a batch whose requests are traced, encoded as OTLP's `ScopeSpans.spans`.
//
// Every traced request has a server span, a child of the caller's span: it begins when the request is queued and ends
// with the answer. Its child `ksrv.queue` is the time in the queue. The span `ksrv.batch` is a child of the first traced
// request, and has the stages as children. It links to the other requests, and they link to it.
//
// Strategy: ids are drawn when a batch is taken. Its spans are encoded once, when its requests have ended, from the
// times that requests and batches have anyway, and wait for the thread that exports them. If the collector is slow,
// spans are dropped and counted: serving requests is more important.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "queue/request.hpp"
#include "queue/stats.hpp"
#include "reactor/log_records.hpp"

namespace ksrv {

// The encoded spans of batches that wait for the exporter, and the number of spans that were dropped.
struct SpanLog {
    LogRecords<std::string> batches;
    std::atomic<std::uint64_t> lost{0};
};

SpanLog &process_spans() noexcept;

// Which requests of a model version are traced, and the encoded fields of its spans: name, kind and attributes.
struct TraceRules {
    bool follows_parent = true;  // the caller's span decides, if the request has one
    double share = 1.0;          // of the other traces, by their ids
    std::atomic<std::uint64_t> rate{1};  // one of so many requests without a caller's span is traced; 0: no request
    std::atomic<std::uint64_t> seen{0};  // requests that `rate` has counted
    std::string request_fields, batch_fields;
};

struct TracedRequest {
    std::size_t index = 0;  // in the batch
    unsigned char trace[16] = {}, span[8] = {}, parent[8] = {};
    bool has_parent = false;
    std::string state, id;  // of tracestate and x-request-id
    std::string failure;    // encoded fields; empty if the request did not fail
};

// The times and sizes of a batch. Times are on the monotonic clock.
struct TracedRun {
    std::int64_t taken_ns = 0;                // when it left the queue
    std::int64_t began_ns = 0, ended_ns = 0;  // when its handler ran; 0 if it did not run
    std::uint64_t rows = 0;
    const ReplyStage *stages = nullptr;       // begins with the assembly
    int stage_count = 0;
};

struct BatchTrace {
    // Adds a request if it is traced. `head`: lines with `traceparent`, `tracestate` and `x-request-id`, among others.
    void add(TraceRules &rules, std::size_t index, const char *head, std::size_t length);

    // Adds the spans to the log. `requests` are all requests of the batch.
    void end(const TraceRules &rules, const Request *const *requests, std::size_t count, const TracedRun &run) const;

    std::vector<TracedRequest> traced;
    unsigned char span[8] = {};  // of the batch
    std::string more;            // encoded fields of the batch's span: its failure, and what the handler has set
};

}  // namespace ksrv
