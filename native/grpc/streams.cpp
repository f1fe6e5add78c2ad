// Receives calls and their messages, as the events of the session report them: `opened`, `field`, `fields_over` for the
// header list, `data` for messages, `peer_over` and `closed` for the end. A complete message becomes a fast request
// (`submit_fast`), or the call waits in the server's run queue for Python.

#include "grpc/streams.hpp"

#include <algorithm>
#include <cstdio>
#include <new>

#include "base/own_host.hpp"
#include "grpc/connection.hpp"
#include "grpc/fast_call.hpp"
#include "grpc/server.hpp"

namespace ksrv::grpc {

namespace {

constexpr size_t MESSAGES_MOST = 4096;      // messages of a stream that may wait before it is refused
constexpr size_t MESSAGES_UNCHECKED = 256;  // the same limit before the caller's token is checked
constexpr size_t DIRECT_BYTES = 16384;      // from this size on, the rest of a message is received into its block
constexpr unsigned RETRY_SECONDS = 1;       // after which a refused call may be retried

const unsigned char *bytes_of(const std::string &text) noexcept {
    return reinterpret_cast<const unsigned char *>(text.data());
}

}  // namespace

Streams::Streams(Connection *connection, http2::OutgoingBytes *out, uint64_t now) noexcept
    : session(this, out), connection_(*connection), server_(*connection->server()), out_(*out),
      requests_left_(server_.config.most_requests()), received_ns_(now) {
    counts.idle_since_ns.store(now, std::memory_order_relaxed);
}

// ---- the head -------------------------------------------------------------------------------

Call *Streams::opened(int32_t stream_id) noexcept {
    if (connection_.is_gone()) return nullptr;
    Call *call = new (std::nothrow) Call(&connection_, stream_id, connection_.now());
    if (!call) return nullptr;
    connection_.retain();
    call->links.next = newest_;
    if (newest_) newest_->links.previous = call;
    newest_ = call;
    counts.open.fetch_add(1, std::memory_order_relaxed);
    counts.unfinished.fetch_add(1, std::memory_order_relaxed);
    if (server_.unfinished.fetch_add(1, std::memory_order_relaxed) >= server_.config.calls) server_.end_unfinished();
    connection_.look_by(connection_.now() + server_.config.head_ns);  // the head has the same time limit as a message
    if (--requests_left_ == 0) connection_.say_goodbye();
    return call;
}

void Streams::field(Call *call, std::string_view name, std::string_view value) noexcept {
    if (call->receiving != Receiving::head) return;  // trailers from a client have no meaning in gRPC
    if (name == ":path") {
        // Clients usually call the same method again.
        if (!last_method_ || last_method_->path != value) last_method_ = server_.method(value);
        call->method = last_method_;
        if (call->method) return;
    }
    call->head.add(name, value);
}

void Streams::fields_over(Call *call, bool whole) noexcept {
    if (call->receiving != Receiving::head) return;  // trailers, or the call was refused before its head was complete
    had_call = true;
    call->head.identify();
    if (const Fault *fault = fault_of_head(*call, whole)) {
        refuse(call, *fault, server_.config.head);
        return;
    }
    call->incoming.since_ns = connection_.now();
    enter(call, Receiving::message);
    if (call->head.timeout_ns != CallHead::NO_TIMEOUT) {
        call->head.deadline_ns = connection_.now() + std::min<uint64_t>(call->head.timeout_ns, uint64_t(1) << 60);
        connection_.look_by(call->head.deadline_ns);
    }
    const bool admitted = is_admitted(*call);
    call->admitted.store(admitted, std::memory_order_relaxed);
    if (call->method->streams) {
        server_.run_later(call, RUN_READY);
    } else if (!admitted) {
        server_.run_later(call, RUN_CHECK);
    }
}

const Fault *Streams::fault_of_head(const Call &call, bool whole) const noexcept {
    const CallHead &head = call.head;
    if (!whole) return &fault::HEAD_TOO_LARGE;
    if (head.fault == &fault::HEAD_LOST) return &fault::HEAD_LOST;
    if (head.verb != "POST") return &fault::WRONG_VERB;
    if (head.type != CallHead::Type::grpc) return &fault::WRONG_TYPE;
    return call.method ? head.fault : &fault::UNKNOWN_METHOD;
}

// Whether Python need not check the caller: it may call without credentials, or it was checked before, and the host is
// this machine. Without :authority, Host may name the host (RFC 9113 8.3.1).
bool Streams::is_admitted(const Call &call) const noexcept {
    const std::string &host = call.head.authority, &shown = call.head.authorization;
    if (server_.config.own_hosts && connection_.address.ss_family != AF_UNIX &&
        (host.empty() || is_foreign_host(bytes_of(host), host.size())))
        return false;
    if (!server_.config.checks_callers || call.method->is_open) return true;
    return !call.method->control && call.head.authorizations == 1 &&
           server_.known_callers.knows(bytes_of(shown), shown.size());
}

// ---- messages -------------------------------------------------------------------------------

void Streams::data(Call *call, const unsigned char *data, size_t length) noexcept {
    IncomingMessage &incoming = call->incoming;
    incoming.progress_ns = connection_.now();
    incoming.unconsumed += length;
    if (length && call->counts_as_open()) refuse(call, fault::SECOND_MESSAGE);
    // Each pass of the loop takes bytes of one message: its prefix, then its content. A DATA frame may end anywhere.
    while (length && call->receiving == Receiving::message) {
        if (!incoming.has_prefix()) {
            if (!incoming.has_begun() && call->method->streams) incoming.since_ns = connection_.now();
            const size_t some = incoming.take_prefix(data, length);
            data += some;
            length -= some;
            if (incoming.has_prefix() && !begin_message(call)) break;
            if (!incoming.has_prefix() || incoming.message.length) continue;
        }
        if (incoming.left() && !incoming.message.block && length && !place_message(call, data, length)) break;
        if (const size_t some = std::min(length, incoming.left())) {
            if (incoming.end() != data) {  // equal if it was received in place, see `place_of_data`
                if (!count(call, some)) break;
                memcpy(incoming.end(), data, some);
            }
            incoming.got += some;
            data += some;
            length -= some;
        }
        if (incoming.left()) break;
        if (length && !call->method->streams) {
            refuse(call, fault::SECOND_MESSAGE);
            break;
        }
        end_message(call);
    }
    if (call->stream > 0) open_window(call);
}

unsigned char *Streams::place_of_data(size_t *length) noexcept {
    Call *call = session.stream_in_data(length);
    if (!call || call->receiving != Receiving::message || !call->incoming.message.block) return nullptr;
    *length = std::min(*length, call->incoming.left());
    return *length >= DIRECT_BYTES && count(call, *length) ? call->incoming.end() : nullptr;
}

// The prefix is complete: checks whether the message is accepted.
bool Streams::begin_message(Call *call) noexcept {
    const ServerConfig &config = server_.config;
    IncomingMessage &incoming = call->incoming;
    const unsigned char flag = incoming.prefix[0];
    incoming.begin();
    const size_t length = incoming.message.length;
    if (flag > 1) {
        refuse(call, fault::BAD_PREFIX, flag);
    } else if (flag && (!config.decompress || call->head.encoding == Encoding::other)) {
        refuse(call, fault::UNREADABLE_ENCODING);
    } else if (flag && call->head.encoding == Encoding::identity) {
        refuse(call, fault::MISSING_ENCODING);
    } else if (call->method->small && length > config.small_message) {
        refuse(call, fault::MESSAGE_ABOVE_METHOD, static_cast<double>(config.small_message));
    } else if (length > config.message || length > server_.budget->most(length <= SMALL_REQUEST_BYTES)) {
        const bool by_budget = config.message_by_budget || length <= config.message;
        refuse(call, by_budget ? fault::MESSAGE_ABOVE_BUDGET : fault::MESSAGE_ABOVE_BODY, static_cast<double>(length),
               static_cast<double>(std::min(config.message, server_.budget->bound())));
    } else {
        return !call->method->streams || count(call, 0);
    }
    return false;
}

// Allocates memory for the message, so that the first tensor is aligned.
bool Streams::place_message(Call *call, const unsigned char *first, size_t length) noexcept {
    Message &message = call->incoming.message;
    const MessageForm *form = call->method->form;
    if (form && !message.compressed)
        message.offset = -first_tensor(*form, first, std::min(length, message.length)) & (BLOCK_ALIGNMENT - 1);
    message.block = process_pool().lease_body(message.length + message.offset);
    if (!message.block) refuse(call, fault::MESSAGE_LOST);
    return message.block;
}

void Streams::end_message(Call *call) noexcept {
    const bool streams = call->method->streams;
    const ServerConfig &config = server_.config;
    if (!streams && !call->method->small && server_.open_calls.load(std::memory_order_relaxed) >= config.calls) {
        refuse(call, fault::TOO_MANY_CALLS, config.calls);
        return;
    }
    const size_t most = call->admitted.load(std::memory_order_acquire) ? MESSAGES_MOST : MESSAGES_UNCHECKED;
    const Fault *fault = nullptr;
    {
        std::lock_guard<std::mutex> guard(call->lock);
        try {
            if (call->messages.size() >= most) {
                fault = &fault::TOO_MANY_MESSAGES;
            } else {
                call->messages.push_back(call->incoming.message);
            }
        } catch (const std::bad_alloc &) {
            fault = &fault::MESSAGE_LOST;
        }
        call->changed.notify_all();
    }
    if (fault) {
        refuse(call, *fault, static_cast<double>(most));
        return;
    }
    call->incoming.await_next(connection_.now());
    if (streams) return;
    enter(call, Receiving::complete);
    if (!call->method->form || !submit_fast(call)) server_.run_later(call, RUN_READY);
}

// Adds a complete message to its model's queue; or to the run queue, if its handler is quick enough that the I/O thread
// runs it itself. False if Python must read the message.
bool Streams::submit_fast(Call *call) noexcept {
    const std::shared_ptr<const RouteTable> routes = server_.routes.get();
    // The queue gives the message's bytes back to the process's budget, so they must be counted there. A test may have
    // another budget.
    if (!routes || server_.budget != &process_budget() || call->messages[0].compressed ||
        !call->admitted.load(std::memory_order_acquire))
        return false;
    FastRequest *request = make_fast_call(call, *routes, connection_.now());
    if (!request) return false;
    Queue *queue = request->signature->queue;
    call->observed.sampled = request->signature->sampler.chooses();
    if (!call->observed.sampled) {
        server_.count(ServerCounter::fast_path);
        if (queue->inline_for_all.load() && request->layout.decodes_quickly()) {
            call->fast = request;
            server_.run_later(call, RUN_READY);
            return true;
        }
        call->watch(request);
        if (queue->push(request) == PUSH_OK) {
            ksrv::release(request);
            return true;
        }
        call->unwatch();
    }
    undo_fast_call(request);
    return false;
}

// ---- the end --------------------------------------------------------------------------------

void Streams::peer_over(Call *call) noexcept {
    // Refuse first: if the thread that reads a stream saw the regular end before the fault, it would answer OK.
    if (call->receiving == Receiving::message) {
        if (call->incoming.has_begun()) {
            refuse(call, fault::PARTIAL_MESSAGE);
        } else if (!call->method->streams) {
            refuse(call, fault::MISSING_MESSAGE);
        } else {
            enter(call, Receiving::complete);
        }
    }
    std::lock_guard<std::mutex> guard(call->lock);
    call->peer_over = true;
    call->changed.notify_all();
}

void Streams::enter(Call *call, Receiving next) noexcept {
    const int waited = call->awaits_first(), was_open = call->counts_as_open();
    call->enter(next);
    if (waited && !call->awaits_first()) {
        counts.unfinished.fetch_sub(1, std::memory_order_relaxed);
        server_.unfinished.fetch_sub(1, std::memory_order_relaxed);
    }
    if (const int more = call->counts_as_open() - was_open)  // 1, or -1 as an unsigned number, which wraps
        server_.open_calls.fetch_add(static_cast<uint32_t>(more), std::memory_order_relaxed);
}

void Streams::stop_receiving(Call *call) noexcept {
    free_message(&call->incoming.message, server_.budget);
    if (call->receiving != Receiving::discarding) enter(call, Receiving::discarding);
}

void Streams::refuse(Call *call, const Fault &fault, double first, double second, double third) noexcept {
    if (fault.counter != fault::NOT_COUNTED) server_.count(fault.counter);
    stop_receiving(call);
    std::string words;
    Metadata trailing;
    Payload *body = nullptr;
    if (fault.status >= HTTP_STATUS && call->head.verb != "HEAD")
        body = Payload::make_plain(&server_, server_.misdirected_body);
    try {
        char text[240];
        snprintf(text, sizeof text, fault.text, first, second, third);
        words = text;
        if (fault.may_be_retried) {
            trailing.emplace_back("retry-after", std::to_string(RETRY_SECONDS));
            trailing.emplace_back("grpc-status-details-bin",
                                  binary_value(retry_details(fault.status, words, RETRY_SECONDS)));
        }
    } catch (const std::bad_alloc &) {
        // The status is sufficient.
    }
    call->finish(fault.status, words, trailing, body);
}

void Streams::closed(Call *call, uint32_t error) noexcept {
    ASSERT_OWNED(connection_.owner);
    const uint64_t now = connection_.now();
    const bool has_head = call->receiving != Receiving::head;
    if (!has_head && error == http2::ENHANCE_YOUR_CALM) server_.count(ServerCounter::too_large);  // far above the limit
    if (server_.config.log && (has_head || error == http2::PROTOCOL_ERROR)) record(call);
    if (!call->counts_as_open()) stop_receiving(call);  // a call that Python has counts as open until it is freed
    (call->links.previous ? call->links.previous->links.next : newest_) = call->links.next;
    if (call->links.next) call->links.next->links.previous = call->links.previous;
    call->stream = -1;
    note_delivered(call);
    Request *request;
    bool has_callbacks;
    {
        std::lock_guard<std::mutex> guard(call->lock);
        call->enter(Life::ended);
        if (call->streams()) call->free_messages();  // nobody will take them any more
        request = std::exchange(call->watched, nullptr);
        has_callbacks = call->callbacks != nullptr;
    }
    if (request) {
        cancel(request);
        ksrv::release(request);
    }
    if (has_callbacks) server_.run_later(call, RUN_ENDED);
    if (counts.open.fetch_sub(1, std::memory_order_relaxed) == 1)
        counts.idle_since_ns.store(now, std::memory_order_relaxed);
    call->release();
}

// Keeps a record of an ended call, for the access log.
void Streams::record(Call *call) noexcept {
    try {
        CallRecord made;
        const CallHead &head = call->head;
        made.path = call->method ? call->method->path : head.unknown_path;
        made.request_id.assign(head.request_id.text, head.request_id.length);
        made.metadata.assign(head.text.data(), head.text.size());
        made.duration_ns = connection_.now() - call->opened_ns;
        made.answered_bytes = call->sending.sent;
        made.peer = connection_.address;
        {
            std::lock_guard<std::mutex> guard(call->lock);
            made.status = call->life == Life::finished ? call->outcome.status : CANCELLED;
            made.model = call->observed.model;
            made.version = call->observed.version;
        }
        const size_t bytes = made.metadata.size() + made.path.size() + made.model.size() + made.version.size();
        if (server_.records.keep(std::move(made), bytes)) return;
    } catch (const std::bad_alloc &) {
        // Losing a line of the access log is better than failing a call.
    }
    server_.count(ServerCounter::lost_lines);
}

void Streams::close_all() noexcept {
    while (newest_) closed(newest_, http2::CANCEL);
}

Call *Streams::oldest() const noexcept {
    Call *oldest = newest_;
    while (oldest && oldest->links.next) oldest = oldest->links.next;
    return oldest;
}

void Streams::end_unfinished() noexcept {
    uint32_t most = (counts.unfinished.load(std::memory_order_relaxed) + 1) / 2;
    for (Call *call = oldest(); call && most; call = call->links.previous) {
        if (!call->awaits_first()) continue;
        refuse(call, fault::TOO_MANY_WAITING, server_.config.calls);
        --most;
    }
}

}  // namespace ksrv::grpc
