#include "trace/batch_trace.hpp"

#include <strings.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string_view>

#include "base/clock.hpp"
#include "base/request_id.hpp"
#include "protobuf/wire_format.hpp"

namespace ksrv {

namespace {

using protobuf::Writer;

// The values of a field of a head, joined by commas (RFC 9110 5.3). A repeated traceparent is malformed that way.
std::string field_of(std::string_view head, std::string_view name) {
    std::string found;
    while (!head.empty()) {
        const std::string_view line = head.substr(0, head.find('\n'));
        head.remove_prefix(std::min(head.size(), line.size() + 1));
        if (line.size() <= name.size() || line[name.size()] != ':') continue;
        if (strncasecmp(line.data(), name.data(), name.size()) != 0) continue;
        const std::string_view value = line.substr(name.size() + 1);
        const std::size_t begin = std::min(value.find_first_not_of(" \t\r"), value.size());
        if (!found.empty()) found += ',';
        found += value.substr(begin, value.find_last_not_of(" \t\r") + 1 - begin);
    }
    return found;
}

// Zeros are not an id (W3C Trace Context 3.2.2).
void new_id(unsigned char *id, std::size_t size) noexcept {
    std::uint64_t random[2];
    next_random(random);
    random[0] |= 1;
    std::memcpy(id, random, size);
}

int hex_value(char digit) noexcept { return digit <= '9' ? digit - '0' : digit - 'a' + 10; }

void from_hex(const char *text, unsigned char *to, std::size_t count) noexcept {
    for (std::size_t i = 0; i < count; ++i)
        to[i] = static_cast<unsigned char>(hex_value(text[2 * i]) << 4 | hex_value(text[2 * i + 1]));
}

template <class Number> void fixed(Writer &to, unsigned field, Number value) noexcept {
    to.tag(field, sizeof value == 8 ? protobuf::FIXED64 : protobuf::FIXED32);
    to.raw(&value, sizeof value);
}

// Adds a KeyValue. `put` writes the AnyValue.
template <class Put> void attribute(Writer &span, std::string_view key, Put &&put) noexcept {
    Writer value, pair;
    put(value);
    pair.bytes(1, key.data(), key.size());
    pair.bytes(2, value.data(), value.size());
    span.bytes(9, pair.data(), pair.size());
}

void attribute(Writer &span, std::string_view key, std::uint64_t number) noexcept {
    attribute(span, key, [number](Writer &value) {
        value.tag(3, protobuf::VARINT);
        value.varint(number);
    });
}

// SpanFlags: whether the parent is in another process is known, and whether it is.
constexpr std::uint32_t HAS_IS_REMOTE = 0x100, IS_REMOTE = 0x200;

void link(Writer &span, const TracedRequest &request, const unsigned char *id) noexcept {
    Writer encoded;
    encoded.bytes(1, request.trace, sizeof request.trace);
    encoded.bytes(2, id, 8);
    fixed(encoded, 6, HAS_IS_REMOTE);
    span.bytes(13, encoded.data(), encoded.size());
}

// Encodes spans one after the other.
struct SpanEncoder {
    const std::int64_t shift = nanoseconds_of(CLOCK_REALTIME) - now_ns();  // to the time since 1970
    Writer out;
    std::uint64_t count = 0;

    // Adds a span. `put` writes name, kind and attributes, and perhaps fields that are written again here: readers take
    // the last value. `parent`: null for a root.
    template <class Put>
    void add(const TracedRequest &request, const unsigned char *id, const unsigned char *parent, bool is_remote,
             std::int64_t began_ns, std::int64_t ended_ns, Put &&put) {
        Writer span;
        put(span);
        span.bytes(1, request.trace, sizeof request.trace);
        span.bytes(2, id, 8);
        span.bytes(3, request.state.data(), request.state.size());
        if (parent) span.bytes(4, parent, 8);
        fixed(span, 7, static_cast<std::uint64_t>(began_ns + shift));
        fixed(span, 8, static_cast<std::uint64_t>(std::max(began_ns, ended_ns) + shift));
        fixed(span, 16, is_remote ? HAS_IS_REMOTE | IS_REMOTE : HAS_IS_REMOTE);
        out.bytes(2, span.data(), span.size());
        ++count;
    }

    void add_child(const TracedRequest &request, const unsigned char *parent, std::string_view name,
                   std::int64_t began_ns, std::int64_t ended_ns) {
        unsigned char id[8];
        new_id(id, sizeof id);
        add(request, id, parent, false, began_ns, ended_ns, [name](Writer &span) {
            span.bytes(5, ("ksrv." + std::string(name)).data(), 5 + name.size());
            span.tag(6, protobuf::VARINT);
            span.varint(1);  // INTERNAL
        });
    }
};

void put_batch(SpanEncoder &to, const TraceRules &rules, const BatchTrace &batch, std::size_t count,
               const TracedRun &run) {
    const TracedRequest &first = batch.traced.front();
    to.add(first, batch.span, first.span, false, run.began_ns, run.ended_ns, [&](Writer &span) {
        span.raw(rules.batch_fields.data(), rules.batch_fields.size());
        attribute(span, "ksrv.batch.rows", run.rows);
        attribute(span, "ksrv.batch.requests", count);
        for (std::size_t i = 1; i < batch.traced.size(); ++i) link(span, batch.traced[i], batch.traced[i].span);
        span.raw(batch.more.data(), batch.more.size());
        std::int64_t at = run.began_ns;
        for (int i = 0; i < run.stage_count; ++i) {
            const std::string_view name(run.stages[i].name, run.stages[i].length);
            const auto took = static_cast<std::int64_t>(run.stages[i].nanoseconds);
            if (i == 0) {
                if (took != 0) to.add_child(first, first.span, name, run.taken_ns, run.taken_ns + took);
            } else if (name == "preprocess" || name == "inference" || name == "explain" || name == "postprocess") {
                to.add_child(first, batch.span, name, at, at + took);
                at += took;
            } else {  // it may overlap the stages that run one after the other
                attribute(span, "ksrv.time." + std::string(name) + "_ms",
                          [took](Writer &value) { fixed(value, 4, static_cast<double>(took) / 1e6); });
            }
        }
    });
}

void put_request(SpanEncoder &to, const TraceRules &rules, const BatchTrace &batch, const TracedRequest &traced,
                 const Request &request, const TracedRun &run) {
    const std::int64_t began_ns = request.enqueued_ns ? request.enqueued_ns : run.taken_ns;
    const std::int64_t ended_ns = request.ended_ns ? request.ended_ns : now_ns();
    to.add_child(traced, traced.span, "queue", began_ns, run.taken_ns);
    const unsigned char *const parent = traced.has_parent ? traced.parent : nullptr;
    to.add(traced, traced.span, parent, traced.has_parent, began_ns, ended_ns, [&](Writer &span) {
        span.raw(rules.request_fields.data(), rules.request_fields.size());
        attribute(span, "ksrv.request.id", [&](Writer &value) { value.bytes(1, traced.id.data(), traced.id.size()); });
        attribute(span, "ksrv.request.rows", std::uint64_t{request.rows});
        if (run.began_ns && &traced != &batch.traced.front()) link(span, batch.traced.front(), batch.span);
        span.raw(traced.failure.data(), traced.failure.size());
    });
}

}  // namespace

SpanLog &process_spans() noexcept {
    static SpanLog log;
    return log;
}

void BatchTrace::add(TraceRules &rules, std::size_t index, const char *head, std::size_t length) {
    const std::uint64_t rate = rules.rate.load(std::memory_order_relaxed);
    if (rate == 0) return;
    const std::string parent = field_of({head, length}, "traceparent");
    const char *const id = trace_id_of(parent.data(), parent.size());
    TracedRequest made;
    made.has_parent = id != nullptr;
    if (id) {
        from_hex(id, made.trace, sizeof made.trace);
        from_hex(id + 33, made.parent, sizeof made.parent);
    } else {
        if (rate > 1 && rules.seen.fetch_add(1, std::memory_order_relaxed) % rate != 0) return;
        new_id(made.trace, sizeof made.trace);
    }
    std::uint64_t low;
    std::memcpy(&low, made.trace + 8, sizeof low);
    const bool in_share = rules.share >= 1.0 || static_cast<double>(be64toh(low)) < std::ldexp(rules.share, 64);
    const bool parent_sampled = id && (hex_value(id[51]) & 1) != 0;
    if (!(id && rules.follows_parent ? parent_sampled : in_share)) return;
    made.index = index;
    if (id) made.state = field_of({head, length}, "tracestate");
    made.id = field_of({head, length}, "x-request-id");
    made.id.erase(0, made.id.rfind(',') + 1);  // the last is the server's
    new_id(made.span, sizeof made.span);
    if (traced.empty()) new_id(span, sizeof span);
    traced.push_back(std::move(made));
}

void BatchTrace::end(const TraceRules &rules, const Request *const *requests, std::size_t count,
                     const TracedRun &run) const {
    SpanEncoder to;
    if (run.began_ns) put_batch(to, rules, *this, count, run);
    for (const TracedRequest &request : traced) put_request(to, rules, *this, request, *requests[request.index], run);
    std::string encoded(reinterpret_cast<const char *>(to.out.data()), to.out.size());
    if (to.out.failed() || !process_spans().batches.keep(std::move(encoded), to.out.size()))
        process_spans().lost.fetch_add(to.count, std::memory_order_relaxed);
}

}  // namespace ksrv
