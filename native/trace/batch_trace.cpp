#include "trace/batch_trace.hpp"

#include <strings.h>

#include <algorithm>
#include <cstring>

#include "base/request_id.hpp"
#include "protobuf/wire_format.hpp"

namespace ksrv {

namespace {

using protobuf::Writer;

// Field numbers of OTLP's Span, Link, Status, KeyValue and AnyValue.
constexpr unsigned SPANS = 2;
constexpr unsigned TRACE_ID = 1, SPAN_ID = 2, TRACE_STATE = 3, PARENT = 4, NAME = 5, KIND = 6, START = 7, END = 8,
                   ATTRIBUTES = 9, LINKS = 13, STATUS = 15, FLAGS = 16;
constexpr unsigned LINK_FLAGS = 6, MESSAGE = 2, CODE = 3, KEY = 1, VALUE = 2, TEXT = 1, INTEGER = 3, DOUBLE = 4;
constexpr unsigned INTERNAL = 1, SERVER = 2, CODE_ERROR = 2;
constexpr std::uint32_t HAS_IS_REMOTE = 0x100, IS_REMOTE = 0x200;

// The lines of a head that tracing needs.
struct TraceFields {
    std::string_view parent, id;
    std::string state;
    int parents = 0;

    void take(std::string_view name, std::string_view value) {
        const auto is = [&](std::string_view wanted) {
            return name.size() == wanted.size() && strncasecmp(name.data(), wanted.data(), wanted.size()) == 0;
        };
        if (is("traceparent")) {
            parent = value;
            ++parents;
        } else if (is("tracestate")) {
            if (!state.empty()) state += ',';
            state += value;
        } else if (is("x-request-id")) {
            id = value;
        }
    }

    void read(std::string_view head) {
        while (!head.empty()) {
            std::string_view line = head.substr(0, head.find('\n'));
            head.remove_prefix(std::min(head.size(), line.size() + 1));
            const char first = line.empty() ? '\0' : static_cast<char>(line[0] | 0x20);
            if (first != 't' && first != 'x') continue;
            const std::size_t colon = line.find(':');
            if (colon == std::string_view::npos) continue;
            std::string_view value = line.substr(colon + 1);
            const std::size_t begin = std::min(value.find_first_not_of(" \t\r"), value.size());
            value = value.substr(begin, value.find_last_not_of(" \t\r") + 1 - begin);
            take(line.substr(0, colon), value);
        }
    }
};

void new_id(unsigned char (&id)[8]) noexcept {
    std::uint64_t random[2];
    do next_random(random);
    while (random[0] == 0);  // W3C Trace Context 3.2.2.4: zeros are no id
    std::memcpy(id, random, sizeof id);
}

int hex_value(char digit) noexcept { return digit <= '9' ? digit - '0' : digit - 'a' + 10; }

void from_hex(const char *text, unsigned char *to, std::size_t count) noexcept {
    for (std::size_t i = 0; i < count; ++i)
        to[i] = static_cast<unsigned char>(hex_value(text[2 * i]) << 4 | hex_value(text[2 * i + 1]));
}

template <class Number> void fixed(Writer &to, unsigned field, Number value) noexcept {
    to.tag(field, sizeof value == 8 ? protobuf::FIXED64 : protobuf::FIXED32);
    to.raw(&value, sizeof value);  // the build knows little-endian machines only
}

void number(Writer &to, unsigned field, std::uint64_t value) noexcept {
    to.tag(field, protobuf::VARINT);
    to.varint(value);
}

void text(Writer &to, unsigned field, std::string_view value) noexcept { to.bytes(field, value.data(), value.size()); }

void message(Writer &to, unsigned field, const Writer &value) noexcept { to.bytes(field, value.data(), value.size()); }

void attribute(Writer &span, std::string_view key, const Writer &value) noexcept {
    Writer pair;
    text(pair, KEY, key);
    message(pair, VALUE, value);
    message(span, ATTRIBUTES, pair);
}

void attribute(Writer &span, std::string_view key, std::string_view value) noexcept {
    Writer encoded;
    text(encoded, TEXT, value);
    attribute(span, key, encoded);
}

void attribute(Writer &span, std::string_view key, std::uint64_t value) noexcept {
    Writer encoded;
    number(encoded, INTEGER, value);
    attribute(span, key, encoded);
}

// Encodes spans one after the other. `out` has the finished spans.
struct SpanEncoder {
    std::int64_t shift = nanoseconds_of(CLOCK_REALTIME) - now_ns();  // from the monotonic clock to the time since 1970
    Writer out;
    std::uint64_t count = 0;

    void begin(Writer &span, const TracedRequest &request, const unsigned char *id, std::string_view name,
               unsigned kind, std::int64_t began_ns, std::int64_t ended_ns) const noexcept {
        span.bytes(TRACE_ID, request.trace, sizeof request.trace);
        span.bytes(SPAN_ID, id, 8);
        if (!request.state.empty()) text(span, TRACE_STATE, request.state);
        text(span, NAME, name);
        number(span, KIND, kind);
        fixed(span, START, static_cast<std::uint64_t>(began_ns + shift));
        fixed(span, END, static_cast<std::uint64_t>(std::max(began_ns, ended_ns) + shift));
    }

    void finish(Writer &span, const unsigned char *parent, bool remote) noexcept {
        if (parent) span.bytes(PARENT, parent, 8);
        fixed(span, FLAGS, remote ? HAS_IS_REMOTE | IS_REMOTE : HAS_IS_REMOTE);
        message(out, SPANS, span);
        ++count;
    }

    void child(const TracedRequest &request, const unsigned char *parent, std::string_view name, std::int64_t began_ns,
               std::int64_t ended_ns) noexcept {
        unsigned char id[8];
        new_id(id);
        Writer span;
        begin(span, request, id, name, INTERNAL, began_ns, ended_ns);
        finish(span, parent, false);
    }
};

void model_names(Writer &span, const TraceRules &rules) noexcept {
    attribute(span, "ksrv.model.name", rules.model);
    attribute(span, "ksrv.model.version", rules.version);
}

void link(Writer &span, const TracedRequest &request, const unsigned char *id) noexcept {
    Writer encoded;
    encoded.bytes(TRACE_ID, request.trace, sizeof request.trace);
    encoded.bytes(SPAN_ID, id, 8);
    fixed(encoded, LINK_FLAGS, HAS_IS_REMOTE);
    message(span, LINKS, encoded);
}

void failure(Writer &span, std::string_view what, std::string_view error_class) noexcept {
    Writer status;
    text(status, MESSAGE, what);
    number(status, CODE, CODE_ERROR);
    message(span, STATUS, status);
    if (!error_class.empty()) attribute(span, "error.type", error_class);
}

// Stages that run one after the other. Other times that a handler reports may overlap these, so they are attributes.
bool is_sequential(std::string_view stage) noexcept {
    return stage == "preprocess" || stage == "inference" || stage == "explain" || stage == "postprocess";
}

void put_batch(SpanEncoder &to, const TraceRules &rules, const BatchTrace &batch, std::size_t count,
               const TracedRun &run) {
    const TracedRequest &first = batch.traced.front();
    if (run.stage_count > 0 && run.stages[0].nanoseconds != 0)
        to.child(first, first.span, "ksrv.assemble", run.taken_ns,
                 run.taken_ns + static_cast<std::int64_t>(run.stages[0].nanoseconds));
    Writer span;
    to.begin(span, first, batch.span, "ksrv.batch", INTERNAL, run.began_ns, run.ended_ns);
    span.raw(batch.more.data(), batch.more.size());
    model_names(span, rules);
    attribute(span, "ksrv.batch.rows", run.rows);
    attribute(span, "ksrv.batch.requests", count);
    for (std::size_t i = 1; i < batch.traced.size(); ++i) link(span, batch.traced[i], batch.traced[i].span);
    if (!batch.error_class.empty()) failure(span, batch.error, batch.error_class);
    std::int64_t at = run.began_ns;
    for (int i = 1; i < run.stage_count; ++i) {
        const std::string_view name(run.stages[i].name, run.stages[i].length);
        const auto took = static_cast<std::int64_t>(run.stages[i].nanoseconds);
        if (is_sequential(name)) {
            to.child(first, batch.span, "ksrv." + std::string(name), at, at + took);
            at += took;
        } else {
            Writer value;
            fixed(value, DOUBLE, static_cast<double>(took) / 1e6);
            attribute(span, "ksrv.time." + std::string(name) + "_ms", value);
        }
    }
    to.finish(span, first.span, false);
}

void put_request(SpanEncoder &to, const TraceRules &rules, const BatchTrace &batch, const TracedRequest &traced,
                 const Request &request, const TracedRun &run) {
    const std::int64_t began_ns = request.enqueued_ns ? request.enqueued_ns : run.taken_ns;
    const std::int64_t ended_ns = request.ended_ns ? request.ended_ns : now_ns();
    to.child(traced, traced.span, "ksrv.queue", began_ns, run.taken_ns);
    Writer span;
    to.begin(span, traced, traced.span, "infer " + rules.model, SERVER, began_ns, ended_ns);
    model_names(span, rules);
    attribute(span, "ksrv.request.id", traced.id);
    attribute(span, "ksrv.request.rows", request.rows);
    if (run.began_ns && &traced != &batch.traced.front()) link(span, batch.traced.front(), batch.span);
    const std::int32_t state = request.state.load();
    if (!batch.error_class.empty()) failure(span, batch.error, batch.error_class);
    else if (!traced.error_class.empty()) failure(span, traced.error, traced.error_class);
    else if (state == STATE_EXPIRED) failure(span, "the request was expired", {});
    else if (state == STATE_CANCELLED) failure(span, "the request was cancelled", {});
    to.finish(span, traced.has_parent ? traced.parent : nullptr, traced.has_parent);
}

}  // namespace

SpanLog &process_spans() noexcept {
    static SpanLog log;
    return log;
}

void BatchTrace::add(TraceRules &rules, std::size_t index, const char *head, std::size_t length) noexcept {
    const std::uint64_t rate = rules.rate.load(std::memory_order_relaxed);
    if (rate == 0) return;
    try {
        TraceFields fields;
        fields.read({head, length});
        TracedRequest made;
        // A repeated traceparent has no meaning (W3C Trace Context 3.2), and neither has the tracestate beside it.
        const char *const id = fields.parents == 1 ? trace_id_of(fields.parent.data(), fields.parent.size()) : nullptr;
        made.has_parent = id != nullptr;
        if (id) {
            from_hex(id, made.trace, sizeof made.trace);
            from_hex(id + 33, made.parent, sizeof made.parent);
            made.state = std::move(fields.state);
        } else {
            if (rate > 1 && rules.seen.fetch_add(1, std::memory_order_relaxed) % rate != 0) return;
            std::uint64_t random[2];
            next_random(random);
            random[0] |= 1;  // not only zeros
            std::memcpy(made.trace, random, sizeof made.trace);
        }
        std::uint64_t low;
        std::memcpy(&low, made.trace + 8, sizeof low);
        const bool parent_sampled = id && (hex_value(id[51]) & 1) != 0;
        if (!process_spans().sampler.chooses(be64toh(low), made.has_parent, parent_sampled)) return;
        made.index = index;
        made.id = fields.id;
        new_id(made.span);
        traced.push_back(std::move(made));
        if (traced.size() == 1) new_id(span);
    } catch (const std::bad_alloc &) {
        process_spans().lost.fetch_add(1, std::memory_order_relaxed);
    }
}

void BatchTrace::fail(std::size_t index, std::string_view what, std::string_view kind) {
    if (index == NOWHERE) {
        error = what;
        error_class = kind;
    }
    for (TracedRequest &request : traced) {
        if (request.index != index) continue;
        request.error = what;
        request.error_class = kind;
    }
}

void BatchTrace::end(const TraceRules &rules, const Request *const *requests, std::size_t count,
                     const TracedRun &run) noexcept {
    SpanEncoder to;
    try {
        if (run.began_ns) put_batch(to, rules, *this, count, run);
        for (const TracedRequest &request : traced) put_request(to, rules, *this, request, *requests[request.index], run);
        if (to.out.failed()) throw std::bad_alloc();
        process_spans().keep(to.out.data(), to.out.size(), to.count);
    } catch (const std::bad_alloc &) {
        process_spans().lost.fetch_add(to.count, std::memory_order_relaxed);
    }
}

}  // namespace ksrv
