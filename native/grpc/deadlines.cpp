// Enforces the time limits of a connection and its calls, in the sweep.

#include <algorithm>
#include <cstdio>

#include "grpc/connection.hpp"
#include "grpc/server.hpp"

namespace ksrv::grpc {

namespace {

constexpr uint64_t LATE_NS = 1'000'000'000u;  // how long the engine has to answer a request after its deadline
constexpr uint64_t SECOND = 1'000'000'000u;
constexpr uint64_t SILENT_NS = SECOND;  // how long an incomplete request may pause while the server stops

}  // namespace

void Connection::tick(uint64_t now) noexcept {
    const ServerConfig &config = server_->config;
    if (!spoke_ && now - opened_ns_ >= config.head_ns) {
        server_->count(ServerCounter::too_slow);
        if (!agreed_) {
            close_now();
            return;
        }
        session_.go_away(http2::NO_ERROR, "no call came in time");
        broken_ = speaks_ = true;
    }
    if (now >= ends_ns_) say_goodbye();
    if (said_goodbye_ && !went_away_ && now - goodbye_ns_ >= GOODBYE_NS) {
        went_away_ = true;
        if (!agreed_) {
            close_now();
            return;
        }
        session_.go_away(http2::NO_ERROR);
    }
    const bool idle = open_calls.load(std::memory_order_relaxed) == 0;
    if (idle && (went_away_ || now - idle_since_ns.load(std::memory_order_relaxed) >= config.idle_ns)) {
        if (!went_away_) session_.go_away(http2::NO_ERROR);
        broken_ = speaks_ = true;
    }
    if (!idle && config.ping_ns) {
        if (ping_sent_ns_ && received_ns_ < ping_sent_ns_ && now - ping_sent_ns_ >= config.ping_timeout_ns) {
            close_now();
            return;
        }
        if (!ping_sent_ns_ && now - received_ns_ >= config.ping_ns) {
            ping_sent_ns_ = now;
            session_.ping();
        }
        if (ping_sent_ns_ && received_ns_ > ping_sent_ns_) ping_sent_ns_ = 0;
    }
    if (blocked_ns_ && now - blocked_ns_ >= config.grace_ns) {
        if (!config.keeps_up(sent_bytes_ - blocked_sent_, now - blocked_ns_, 0)) {
            server_->count(ServerCounter::too_slow);
            close_now();
            return;
        }
        blocked_ns_ = now;
        blocked_sent_ = sent_bytes_;
    }
    for (Call *call = calls_; call;) {
        Call *following = call->next;
        look_at_call(call, now);
        call = following;
    }
    server_->timers.set(slot, now + GOODBYE_NS);
}

void Connection::look_at_call(Call *call, uint64_t now) noexcept {
    const ServerConfig &config = server_->config;
    bool finished, watched, waits, is_left;
    if (call->whole_ns && !call->overdue && now - call->whole_ns >= overdue_ns()) {
        call->overdue = true;
        overdue.fetch_add(1, std::memory_order_relaxed);
    }
    const bool silent = went_away_ && server_->draining.load(std::memory_order_relaxed) &&
                        now - std::max(call->opened_ns, call->progress_ns) >= SILENT_NS;
    uint64_t answer_bytes;
    {
        std::lock_guard<std::mutex> guard(call->lock);
        answer_bytes = call->answer_sent + call->out_bytes;
        finished = call->finished;
        watched = call->watched != nullptr;
        // Whether the client leaves data unread. Even if no byte of the answer waits, its trailers need an open window.
        is_left = call->out_bytes || (call->finished && !call->trailed && out_.empty());
        waits = call->messages_taken == call->messages.size() && !call->peer_over;
    }
    if (call->answered && is_left && now - call->answer_looked >= config.grace_ns) {
        const bool streams = call->method && call->method->streams;
        if (!config.keeps_up(call->answer_sent - call->answer_before, now - call->answer_looked,
                             streams ? 0 : answer_bytes)) {
            server_->count(ServerCounter::too_slow);
            call->trailed = true;
            session_.reset(call->stream, http2::CANCEL);
            return;
        }
        call->answer_looked = now;
        call->answer_before = call->answer_sent;
    }
    if (!is_left) call->answer_looked = now;
    if (finished) return;
    if (call->deadline_ns && now >= call->deadline_ns + (watched ? LATE_NS : 0)) {
        refuse(call, DEADLINE_EXCEEDED, "Deadline Exceeded");
        return;
    }
    if (call->discard_body || !waits) return;
    const bool partial = call->prefix_got != 0;
    // The thread that takes its messages enforces their pace.
    if (!partial && call->method && call->method->streams) return;
    if (silent) {
        refuse(call, UNAVAILABLE, "the server stops, and no whole request message has come; send it again", RETRY_SECONDS);
        return;
    }
    const uint64_t rate = config.least_rate(call->incoming.length);
    const uint64_t allowed = config.head_ns + call->got / rate * SECOND;
    if (now - call->message_ns < allowed) return;
    server_->count(ServerCounter::too_slow);
    char text[240];
    snprintf(text, sizeof text,
             "no whole request message arrived within %.3g s; it must begin in time and make %llu bytes a second, "
             "which the settings 'min_transfer_rate' and 'transfer_timeout' ask for",
             static_cast<double>(allowed) / 1e9, static_cast<unsigned long long>(rate));
    refuse(call, DEADLINE_EXCEEDED, text);
}

}  // namespace ksrv::grpc
