// Receives calls and their messages.

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <new>

#include "base/own_host.hpp"
#include "grpc/connection.hpp"
#include "grpc/fast_call.hpp"
#include "grpc/server.hpp"

namespace ksrv::grpc {

namespace {

constexpr size_t COUNTED_STEP = 65536;    // bytes of a message that are counted at once
constexpr size_t MESSAGES_AHEAD = 2;      // messages of a stream that may be complete but not taken
constexpr size_t MESSAGES_MOST = 4096;    // limit for such messages before the stream is refused
constexpr size_t MESSAGES_UNCHECKED = 256;  // the same limit before the caller's token is checked
constexpr size_t MESSAGE_OVERHEAD = 256;  // bytes of memory per message of a stream, in addition to the message
// Limit for health and metadata requests, which are accepted even if the budget is used up.
constexpr size_t PROBE_BYTES = 1024;
constexpr size_t AHEAD = 4u << 20;        // bytes of a message that may be in flight
constexpr unsigned RAW_INPUT_CONTENTS = 7;
constexpr uint64_t LIVED_NS = 10'000'000u;  // after this time a peer may reset a stream: 128 resets in it are few
// If a connection was not read for longer, resets are forgiven for this time only.
constexpr uint64_t LATEST_NS = 100'000'000u;

template <size_t N> inline bool is(const char *name, size_t length, const char (&text)[N]) noexcept {
    return length == N - 1 && memcmp(name, text, N - 1) == 0;
}

template <size_t N> inline bool begins(const char *name, size_t length, const char (&text)[N]) noexcept {
    return length >= N - 1 && memcmp(name, text, N - 1) == 0;
}

// The offset of the first raw tensor's bytes in a ModelInferRequest, or 0 if it is not known yet.
size_t first_tensor(const unsigned char *message, size_t length) noexcept {
    size_t at = 0;
    const auto number = [&](uint64_t *value) {
        *value = 0;
        for (int shift = 0; at < length && shift < 64; shift += 7) {
            const unsigned char byte = message[at++];
            *value |= static_cast<uint64_t>(byte & 127) << shift;
            if (byte < 128) return true;
        }
        return false;
    };
    uint64_t tag = 0, size = 0;
    while (number(&tag) && (tag & 7) == 2 && number(&size)) {
        if (tag >> 3 == RAW_INPUT_CONTENTS) return size ? at : 0;
        if (size > length - at) return 0;
        at += size;
    }
    return 0;
}

}  // namespace

void *Connection::opened(int32_t stream_id) noexcept {
    if (said_goodbye_ && went_away_) return nullptr;
    Call *call = new (std::nothrow) Call(this, stream_id, now_);
    if (!call) return nullptr;
    retain();
    call->next = calls_;
    if (calls_) calls_->previous = call;
    calls_ = call;
    open_calls.fetch_add(1, std::memory_order_relaxed);
    call->waits_for_first = true;
    call->message_ns = now_;  // the head has the same time limit as a message
    unfinished.fetch_add(1, std::memory_order_relaxed);
    if (server_->unfinished.fetch_add(1, std::memory_order_relaxed) >= server_->config.calls)
        server_->end_unfinished();
    look_by(now_ + server_->config.head_ns);
    if (--requests_left_ == 0) say_goodbye();
    return call;
}

void Connection::field(void *stream, const char *name, size_t name_length, const char *value,
                       size_t value_length) noexcept {
    Call *call = static_cast<Call *>(stream);
    if (call->fields_done || call->head_lost) return;  // trailers from a client have no meaning in gRPC
    try {
        if (name[0] == ':') {
            // Clients usually call the same method again. Only the access log needs the path then.
            const bool is_path = is(name, name_length, ":path");
            const bool repeats = is_path && !server_->config.log && called_last_ &&
                                 called_last_->path == std::string_view(value, value_length);
            if (is_path && !repeats) call->path.assign(value, value_length);
            if (is(name, name_length, ":method")) call->verb.assign(value, value_length);
            if (is(name, name_length, ":authority")) call->authority.assign(value, value_length);
            return;
        }
        if (is(name, name_length, "content-type")) {
            const bool grpc = begins(value, value_length, "application/grpc") &&
                              (value_length == 16 || value[16] == '+' || value[16] == ';');
            (grpc ? call->is_grpc : call->is_other) = true;
            return;
        }
        if (is(name, name_length, "te")) return;
        if (is(name, name_length, "grpc-timeout")) {
            call->has_timeout = read_timeout(value, value_length, &call->timeout_ns);
            call->bad_timeout = !call->has_timeout;
            return;
        }
        if (is(name, name_length, "grpc-encoding")) {
            call->encoding = is(value, value_length, "identity")  ? Call::Encoding::identity
                             : is(value, value_length, "gzip")    ? Call::Encoding::gzip
                             : is(value, value_length, "deflate") ? Call::Encoding::deflate
                                                                  : Call::Encoding::other;
            return;
        }
        if (begins(name, name_length, "grpc-")) return;
        if (is(name, name_length, "authorization")) {
            call->repeats_authorization |= call->has_authorization;
            call->has_authorization = true;
            call->authorization.assign(value, value_length);
        }
        const size_t at = call->text.size(), value_at = at + name_length + 2;
        char *const line = call->text.extend(name_length + value_length + 4);
        if (!line) throw std::bad_alloc();
        memcpy(line, name, name_length);
        memcpy(line + name_length, ": ", 2);
        memcpy(line + name_length + 2, value, value_length);
        memcpy(line + name_length + 2 + value_length, "\r\n", 2);
        call->entries.push_back({static_cast<uint32_t>(at), static_cast<uint32_t>(name_length),
                                 static_cast<uint32_t>(value_at), static_cast<uint32_t>(value_length)});
    } catch (const std::bad_alloc &) {
        call->head_lost = true;
    }
}

void Connection::fields_over(void *stream, bool whole) noexcept {
    Call *call = static_cast<Call *>(stream);
    if (call->fields_done) return;
    call->head_too_large = !whole;
    if (!whole) server_->count(ServerCounter::too_large);
    call->fields_done = true;
    spoke_ = true;
    if (call->discard_body) return;  // refused before its head was complete
    call->message_ns = now_;
    call->identify();
    if (call->head_too_large) {
        char text[120];
        snprintf(text, sizeof text, "the call's metadata is above the limit --limits-head (%u bytes)",
                 server_->config.head);
        refuse(call, RESOURCE_EXHAUSTED, text);
        return;
    }
    if (call->head_lost) {
        refuse(call, RESOURCE_EXHAUSTED, "not enough memory for the call's metadata; try again later", RETRY_SECONDS);
        return;
    }
    if (call->verb != "POST") {
        refuse_http(call, "405", call->verb == "HEAD" ? std::string_view() : std::string_view(server_->misdirected_body));
        return;
    }
    if (!call->is_grpc || call->is_other) {
        refuse_http(call, "415", server_->misdirected_body);
        return;
    }
    call->method = method_of(*call);
    if (!call->method) {
        refuse(call, UNIMPLEMENTED, "Method not found!");
        return;
    }
    if (call->bad_timeout) {
        refuse(call, INTERNAL, "the call's grpc-timeout is malformed");
        return;
    }
    if (call->has_timeout) {
        call->deadline_ns = now_ + std::min<uint64_t>(call->timeout_ns, uint64_t(1) << 60);
        look_by(call->deadline_ns);
    }
    const std::string &shown = call->authorization;
    const bool checked = server_->config.checks_callers && !call->method->is_open;
    const bool known = has_own_host(*call) &&
                       (!checked || (!call->method->control && !call->repeats_authorization &&
                                     server_->known_callers.knows(
                                         reinterpret_cast<const unsigned char *>(shown.data()), shown.size())));
    call->admitted.store(known, std::memory_order_relaxed);
    if (call->method->streams) {
        note_first(call);
        server_->run_later(call, RUN_READY);
    } else if (!known) {
        server_->run_later(call, RUN_CHECK);
    }
}

// Whether a call's host is this machine, so that Python need not check it. Without :authority, Host may name the host
// (RFC 9113 8.3.1).
bool Connection::has_own_host(const Call &call) const noexcept {
    if (!server_->config.own_hosts || address.ss_family == AF_UNIX) return true;
    const std::string &host = call.authority;
    return !host.empty() && !is_foreign_host(reinterpret_cast<const unsigned char *>(host.data()), host.size());
}

// Null for an unknown method. A call without a path repeats the last method.
const Method *Connection::method_of(const Call &call) noexcept {
    if (!called_last_ || !call.path.empty()) called_last_ = server_->method(call.path);
    return called_last_;
}

// The call no longer waits for its first message.
void Connection::note_first(Call *call) noexcept {
    if (!call->waits_for_first) return;
    call->waits_for_first = false;
    unfinished.fetch_sub(1, std::memory_order_relaxed);
    server_->unfinished.fetch_sub(1, std::memory_order_relaxed);
}

void Connection::data(void *stream, const unsigned char *data, size_t length) noexcept {
    Call *call = static_cast<Call *>(stream);
    call->progress_ns = now_;
    call->unconsumed += length;
    if (length && call->counted_open) refuse_second(call);
    while (length && !call->discard_body) {
        if (call->prefix_got < PREFIX) {
            if (call->prefix_got == 0 && call->method->streams) call->message_ns = now_;
            const size_t some = std::min(length, PREFIX - call->prefix_got);
            memcpy(call->prefix + call->prefix_got, data, some);
            call->prefix_got += some;
            data += some;
            length -= some;
            if (call->prefix_got == PREFIX && !begin_message(call)) break;
            if (call->prefix_got < PREFIX || call->incoming.length) continue;
        }
        Message &message = call->incoming;
        if (message.length && !message.block && length && !place_message(call, data, length)) break;
        const size_t some = std::min(length, message.length - call->got);
        if (some) {
            unsigned char *target = message.block->data + message.offset + call->got;
            if (target != data) {
                if (!count_message(call, some)) break;
                memcpy(target, data, some);
            }
            call->got += some;
            data += some;
            length -= some;
        }
        if (call->got < message.length) break;
        if (length && !call->method->streams) {
            refuse_second(call);
            break;
        }
        end_message(call);
    }
    if (call->stream > 0) open_window(call);
}

// The prefix is complete: checks whether the message is accepted.
bool Connection::begin_message(Call *call) noexcept {
    const unsigned char *prefix = call->prefix;
    const ServerConfig &config = server_->config;
    const size_t length = static_cast<size_t>(prefix[1]) << 24 | static_cast<size_t>(prefix[2]) << 16 |
                          static_cast<size_t>(prefix[3]) << 8 | prefix[4];
    char text[200];
    if (prefix[0] > 1) {
        snprintf(text, sizeof text,
                 "a message begins with the byte %u, not with 0 or 1 and the message's length in 4 bytes", prefix[0]);
        refuse(call, INTERNAL, text);
        return false;
    }
    if (prefix[0] && (!config.decompress || call->encoding == Call::Encoding::other)) {
        refuse(call, UNIMPLEMENTED,
               "the message is compressed in a way that this server does not read; grpc-accept-encoding says "
               "what it reads");
        return false;
    }
    if (prefix[0] && call->encoding == Call::Encoding::identity) {
        refuse(call, INTERNAL,
               "the message is marked as compressed, and the call has no grpc-encoding; send both or none");
        return false;
    }
    if (call->method->small && length > config.small_message) {
        server_->count(ServerCounter::too_large);
        snprintf(text, sizeof text, "the request message has more than %llu bytes, the limit of this method",
                 static_cast<unsigned long long>(config.small_message));
        refuse(call, RESOURCE_EXHAUSTED, text);
        return false;
    }
    if (length > config.message || length > server_->budget->most(length <= MemoryBudget::SMALL_REQUEST)) {
        server_->count(ServerCounter::too_large);
        snprintf(text, sizeof text, "the message has %zu bytes, above the limit --limits-%s (%llu bytes)", length,
                 config.message_by_budget || length <= config.message ? "in-flight" : "body",
                 static_cast<unsigned long long>(std::min(config.message, server_->budget->bound())));
        refuse(call, RESOURCE_EXHAUSTED, text);
        return false;
    }
    call->incoming = Message{};
    call->incoming.length = length;
    call->incoming.compressed = prefix[0] == 1;
    call->got = 0;
    return !call->method->streams || count_message(call, 0);
}

// Allocates memory for the message, so that the first tensor is aligned.
bool Connection::place_message(Call *call, const unsigned char *first, size_t length) noexcept {
    Message &message = call->incoming;
    size_t offset = 0;
    if (call->method->infer && !message.compressed)
        offset = -first_tensor(first, std::min(length, message.length)) & (BLOCK_ALIGNMENT - 1);
    message.block = process_pool().lease_body(message.length + offset);
    message.offset = offset;
    if (message.block) return true;
    refuse(call, RESOURCE_EXHAUSTED, "not enough memory for the message; try again later", RETRY_SECONDS);
    return false;
}

// Counts bytes of a message before memory is allocated for them. If the budget does not allow them, refuses the call
// and returns false.
bool Connection::count_message(Call *call, size_t more) noexcept {
    Message &message = call->incoming;
    const size_t overhead = call->method->streams ? MESSAGE_OVERHEAD : 0;
    const size_t wanted = call->got + more;
    if (wanted + overhead <= message.counted) return true;
    const size_t rounded = (wanted + COUNTED_STEP - 1) / COUNTED_STEP * COUNTED_STEP;
    const size_t target = std::min(message.length, rounded) + overhead;
    const size_t missing = target - message.counted;
    MemoryBudget *budget = server_->budget;
    const bool is_probe = call->method->small && message.length <= PROBE_BYTES;
    if (is_probe) budget->take(missing);
    if (is_probe || budget->reserve(missing, message.length <= MemoryBudget::SMALL_REQUEST)) {
        message.counted = target;
        return true;
    }
    server_->count(ServerCounter::bytes_in_flight);
    char text[200];
    snprintf(text, sizeof text,
             "%zu more bytes would take the requests in flight to %llu bytes, above the limit --limits-in-flight (%llu "
             "bytes)",
             missing, static_cast<unsigned long long>(budget->held() + missing),
             static_cast<unsigned long long>(budget->bound()));
    refuse(call, RESOURCE_EXHAUSTED, text, RETRY_SECONDS);
    return false;
}

void Connection::end_message(Call *call) noexcept {
    const bool streams = call->method->streams;
    if (!streams) {
        note_first(call);
        if (!call->method->small &&
            server_->open_calls.load(std::memory_order_relaxed) >= server_->config.calls) {
            server_->count(ServerCounter::calls);
            char text[120];
            snprintf(text, sizeof text, "%u calls are open, the most of this server; send fewer at a time",
                     server_->config.calls);
            refuse(call, RESOURCE_EXHAUSTED, text, RETRY_SECONDS);
            return;
        }
    }
    const size_t most = call->admitted.load(std::memory_order_acquire) ? MESSAGES_MOST : MESSAGES_UNCHECKED;
    bool stored = true, too_many = false;
    {
        std::lock_guard<std::mutex> guard(call->lock);
        try {
            too_many = call->messages.size() - call->messages_taken >= most;
            if (!too_many) call->messages.push_back(call->incoming);
        } catch (const std::bad_alloc &) {
            stored = false;
        }
        stored = stored && !too_many;
        if (stored) call->incoming = Message{};
        call->changed.notify_all();
    }
    if (too_many) {
        char text[160];
        snprintf(text, sizeof text,
                 "%zu messages of the stream wait to be taken, which is the most; take answers before more is sent",
                 most);
        server_->count(ServerCounter::calls);
        refuse(call, RESOURCE_EXHAUSTED, text);
        return;
    }
    if (!stored) {
        refuse(call, RESOURCE_EXHAUSTED, "not enough memory for the message; try again later", RETRY_SECONDS);
        return;
    }
    call->prefix_got = call->got = 0;
    call->message_ns = now_;
    if (streams) return;
    call->discard_body = true;
    call->counted_open = true;
    server_->open_calls.fetch_add(1, std::memory_order_relaxed);
    if (call->method->infer && submit_fast(call)) return;
    server_->run_later(call, RUN_READY);
}

// Adds a complete message to its model's queue, or to the run queue. False if it is left to the general path.
bool Connection::submit_fast(Call *call) noexcept {
    const std::shared_ptr<const RouteTable> routes = server_->routes.table();
    if (!routes || server_->budget != &process_budget() || call->messages[0].compressed ||
        !call->admitted.load(std::memory_order_acquire))
        return false;
    FastRequest *request = make_fast_call(call, *routes, now_);
    if (!request) return false;
    if (request->signature->recorded.chooses()) {
        call->sampled = true;
        undo_fast_call(request);
        return false;
    }
    server_->count(ServerCounter::fast_path);
    Queue *queue = request->signature->queue;
    if (queue->inline_for_all.load() && request->layout.decodes_quickly()) {
        call->fast = request;
        server_->run_later(call, RUN_READY);
        return true;
    }
    call->watch(request);
    if (queue->push(request) == PUSH_OK) {
        ksrv::release(request);
        return true;
    }
    call->unwatch();
    undo_fast_call(request);
    return false;
}

// Lets the peer send more if it is wanted.
void Connection::open_window(Call *call) noexcept {
    if (!call->unconsumed) return;
    const Message &message = call->incoming;
    const bool large = call->prefix_got == PREFIX && message.length > COUNTED_STEP;
    if (large && !call->admitted.load(std::memory_order_acquire)) return;
    if (call->method && call->method->streams) {
        std::lock_guard<std::mutex> guard(call->lock);
        if (call->messages.size() - call->messages_taken >= MESSAGES_AHEAD) return;
    }
    if (large) session_.widen(call->stream, std::min(message.length - call->got + PREFIX + COUNTED_STEP, AHEAD));
    const size_t some = call->unconsumed;
    call->unconsumed = 0;
    session_.consume(call->stream, some);
}

void Connection::peer_over(void *stream) noexcept {
    Call *call = static_cast<Call *>(stream);
    const bool partial = call->prefix_got != 0 && !call->discard_body && call->method;
    bool none;
    // Before a reader of the stream sees the end, because the reader would answer OK.
    if (partial) {
        refuse(call, INVALID_ARGUMENT,
               "the call ended within a message; send the whole message before the end of the call");
    }
    {
        std::lock_guard<std::mutex> guard(call->lock);
        call->peer_over = true;
        none = call->messages.empty();
        call->changed.notify_all();
    }
    if (partial || call->discard_body || !call->method) return;
    if (!call->method->streams && none) {
        refuse(call, INVALID_ARGUMENT, "the call requires exactly one request message");
    }
}

// A unary call has sent more than one message.
void Connection::refuse_second(Call *call) noexcept {
    refuse(call, UNIMPLEMENTED, "the call requires exactly one request message, and further bytes came");
}

void Connection::stop_receiving(Call *call) noexcept {
    call->discard_body = true;
    free_message(&call->incoming, server_->budget);
    note_first(call);
}

void Connection::refuse(Call *call, int status, const char *text, unsigned retry_seconds) noexcept {
    stop_receiving(call);
    std::string words;
    Metadata trailing;
    try {
        words = text;
        if (retry_seconds) {
            trailing.emplace_back("retry-after", std::to_string(retry_seconds));
            trailing.emplace_back("grpc-status-details-bin",
                                  binary_value(retry_details(status, words, retry_seconds)));
        }
    } catch (const std::bad_alloc &) {
        // The status is sufficient.
    }
    call->finish(status, words, trailing);
}

// Ends a request that is not gRPC. If memory is short for the body (JSON), the answer is only the HTTP status.
void Connection::refuse_http(Call *call, const char *http_status, std::string_view body) noexcept {
    stop_receiving(call);
    const http2::Field fields[] = {http2::field_of(":status", 7, http_status, 3, 0),
                                   http2::field_of("content-type", 12, "application/json", 16, 0)};
    Payload *const made = body.empty() ? nullptr : Payload::make_plain(server_, budget(), body);
    const bool has_body = made != nullptr;
    if (has_body) {
        std::lock_guard<std::mutex> guard(call->lock);
        call->queue(made);
        call->finished = true;
    }
    call->answered = true;
    call->trailed = !has_body;
    if (has_body) {
        call->answer_looked = now_;
        note_untaken(call);
    }
    session_.answer(call->stream, fields, has_body ? 2 : 1, has_body);
}

bool Connection::has_lived(void *stream) noexcept {
    const Call *call = static_cast<const Call *>(stream);
    return call->answered || now_ - call->opened_ns >= LIVED_NS;
}

// Called when bytes arrive. If nothing was read for long, for example because this server got no CPU, streams may have
// been opened and reset in that time after a normal life, but look young. Therefore as many resets are forgiven as
// streams could have lived in sequence, minus the open streams. A peer gains nothing by it: it could have had as many
// resets by waiting for its streams to live.
void Connection::note_received(size_t length) noexcept {
    const uint64_t lives = std::min(now_ - received_ns_, LATEST_NS) / LIVED_NS * server_->config.streams;
    const uint32_t open = open_calls.load(std::memory_order_relaxed);
    if (lives > open) session_.forgive_resets(static_cast<uint32_t>(lives - open));
    received_ns_ = now_;
    received_bytes_ += length;
}

void Connection::closed(void *stream, uint32_t error) noexcept {
    Call *call = static_cast<Call *>(stream);
    stop_receiving(call);
    if (!call->fields_done && error == http2::ENHANCE_YOUR_CALM) server_->count(ServerCounter::too_large);  // far above the limit
    const bool malformed = !call->fields_done && error == http2::PROTOCOL_ERROR;  // libnghttp2 has reset it
    if (server_->config.log && (call->fields_done || malformed)) server_->record(call, now_);
    (call->previous ? call->previous->next : calls_) = call->next;
    if (call->next) call->next->previous = call->previous;
    call->stream = -1;
    note_taken(call);
    Request *request;
    bool tells;
    {
        std::lock_guard<std::mutex> guard(call->lock);
        call->ended = true;
        if (call->method && call->method->streams) call->free_untaken();  // its reader has left
        request = call->watched;
        call->watched = nullptr;
        tells = call->callbacks != nullptr;
        call->changed.notify_all();
    }
    if (request) {
        cancel(request);
        ksrv::release(request);
    }
    if (tells) server_->run_later(call, RUN_ENDED);
    if (open_calls.fetch_sub(1, std::memory_order_relaxed) == 1)
        idle_since_ns.store(now_, std::memory_order_relaxed);
    call->release();
}

}  // namespace ksrv::grpc
