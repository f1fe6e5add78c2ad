// Enforces the time limits of calls. `Connection::tick` calls this from the timer's sweep, in the owner.

#include <algorithm>

#include "grpc/connection.hpp"
#include "grpc/status.hpp"
#include "grpc/server.hpp"

namespace ksrv::grpc {

namespace {

// How long the engine has to answer a request after its deadline. Its error says more than the error here.
constexpr uint64_t LATE_NS = 1'000'000'000u;
constexpr uint64_t SECOND = 1'000'000'000u;
constexpr uint64_t SILENT_NS = SECOND;  // how long an incomplete request may pause while the server stops

}  // namespace

void Streams::look_at_calls() noexcept {
    for (Call *call = newest_; call; call = call->links.next) look_at_call(call);
}

void Streams::look_at_call(Call *call) noexcept {
    const ServerConfig &config = server_.config;
    const uint64_t now = connection_.now();
    const IncomingMessage &incoming = call->incoming;
    Sending &sending = call->sending;
    bool is_open, is_watched, has_unread, has_messages;
    uint64_t answer_bytes;
    {
        std::lock_guard<std::mutex> guard(call->lock);
        is_open = call->life == Life::open;
        is_watched = call->watched != nullptr;
        has_messages = call->messages.size() != 0;
        answer_bytes = sending.sent + call->out.bytes();
        // Whether a part of the answer waits for the client, even if it is only the trailers.
        has_unread = call->out.bytes() || (!is_open && call->answering < Answering::trailers && out_.empty());
    }
    if (!keeps_up(call, has_unread, answer_bytes)) {
        server_.count(ServerCounter::too_slow);
        reset(call, http2::CANCEL);
        return;
    }
    if (!is_open) return;
    const uint64_t deadline = call->head.deadline_ns;
    if (deadline && now >= deadline + (is_watched ? LATE_NS : 0)) {
        refuse(call, fault::LATE);
        return;
    }
    if (call->receiving > Receiving::message || has_messages) return;
    // Below: the pace of the arriving message. Between two messages of a stream no time limit applies here: the thread
    // that takes the messages has a time limit.
    if (call->receiving == Receiving::message && call->method->streams && !incoming.has_begun()) return;
    if (connection_.is_gone() && server_.draining.load(std::memory_order_relaxed) &&
        now - std::max(call->opened_ns, incoming.progress_ns) >= SILENT_NS) {
        refuse(call, fault::STOPPING);
        return;
    }
    const uint64_t rate = config.least_rate(incoming.message.length);
    const uint64_t allowed = config.head_ns + incoming.got / rate * SECOND;
    if (now - incoming.since_ns >= allowed)
        refuse(call, fault::SLOW_MESSAGE, static_cast<double>(allowed) / 1e9, static_cast<double>(rate));
}

// Whether the client reads its answer fast enough. Measured once in each grace period.
bool Streams::keeps_up(Call *call, bool has_unread, uint64_t answer_bytes) noexcept {
    Sending &sending = call->sending;
    const uint64_t now = connection_.now(), elapsed = now - sending.looked_ns;
    if (has_unread) {
        if (call->answering != Answering::body || elapsed < server_.config.grace_ns) return true;
        if (!server_.config.keeps_up(sending.sent - sending.sent_before, elapsed, call->streams() ? 0 : answer_bytes))
            return false;
        sending.sent_before = sending.sent;
    }
    sending.looked_ns = now;
    return true;
}

}  // namespace ksrv::grpc
