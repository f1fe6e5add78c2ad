// Limits what a peer may send: the windows of its streams, the bytes of messages in the memory budget, and resets of
// streams. A window is the number of bytes that the peer may send on a stream; it grows only by a frame of this side.

#include <algorithm>

#include "grpc/connection.hpp"
#include "grpc/server.hpp"

namespace ksrv::grpc {

namespace {

constexpr size_t COUNTED_STEP = 65536;  // bytes of a message that are counted at once
constexpr size_t MESSAGES_AHEAD = 2;    // messages of a stream that may be complete but not taken
constexpr size_t MESSAGE_OVERHEAD = 256;  // bytes of memory per message of a stream, in addition to the message
// Limit for health and metadata requests, which are accepted even if the budget is used up.
constexpr size_t PROBE_BYTES = 1024;
constexpr size_t AHEAD = 4u << 20;             // the largest window: bytes of a message that may be in flight
// A peer may reset streams that are older, at no cost. With 128 streams, that allows 12,800 resets per second.
constexpr uint64_t LIVED_NS = 10'000'000u;
// Resets are forgiven for at most this time without a read; see `note_received`.
constexpr uint64_t LATEST_NS = 100'000'000u;

}  // namespace

void Streams::open_window(Call *call) noexcept {
    IncomingMessage &incoming = call->incoming;
    if (!incoming.unconsumed) return;
    // A large message waits until Python has checked the caller, a stream until its messages were taken.
    const bool large = incoming.has_prefix() && incoming.message.length > COUNTED_STEP;
    if (large && !call->admitted.load(std::memory_order_acquire)) return;
    if (call->streams()) {
        std::lock_guard<std::mutex> guard(call->lock);
        if (call->messages.size() >= MESSAGES_AHEAD) return;
    }
    if (large) session.widen(call->stream, std::min(incoming.left() + PREFIX + COUNTED_STEP, AHEAD));
    session.consume(call->stream, incoming.unconsumed);
    incoming.unconsumed = 0;
}

// Counts bytes of a message before memory is allocated for them. If the budget does not allow them, refuses the call
// and returns false.
bool Streams::count(Call *call, size_t more) noexcept {
    MemoryBudget &budget = *server_.budget;
    Message &message = call->incoming.message;
    const size_t overhead = call->method->streams ? MESSAGE_OVERHEAD : 0;
    const size_t wanted = call->incoming.got + more;
    if (wanted + overhead <= message.counted) return true;
    const size_t rounded = (wanted + COUNTED_STEP - 1) / COUNTED_STEP * COUNTED_STEP;
    const size_t target = std::min(message.length, rounded) + overhead;
    const size_t missing = target - message.counted;
    if (call->method->small && message.length <= PROBE_BYTES) {
        budget.take(missing);
    } else if (!budget.reserve(missing, message.length <= SMALL_REQUEST_BYTES)) {
        refuse(call, fault::IN_FLIGHT_FULL, static_cast<double>(missing), static_cast<double>(budget.held() + missing),
               static_cast<double>(budget.bound()));
        return false;
    }
    message.counted = target;
    return true;
}

// If nothing was read for long, for example because this server got no CPU, streams may have been opened and reset in
// that time after a normal life, but look young. Therefore as many resets are forgiven as streams could have lived in
// sequence, minus the open streams. A peer gains nothing by it: it could have had as many resets by waiting for its
// streams to live.
void Streams::note_received() noexcept {
    const uint64_t now = connection_.now(), open = counts.open.load(std::memory_order_relaxed);
    const uint64_t lives = std::min(now - received_ns_, LATEST_NS) / LIVED_NS * server_.config.streams;
    if (lives > open) session.forgive_resets(static_cast<uint32_t>(lives - open));
    received_ns_ = now;
}

bool Streams::has_lived(const Call &call) const noexcept {
    return call.answering != Answering::none || connection_.now() - call.opened_ns >= LIVED_NS;
}

}  // namespace ksrv::grpc
