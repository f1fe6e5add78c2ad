// The work of a connection's owner: handles events and mail, reads, sends, and ends the connection in its stages.

#include "grpc/connection.hpp"

#include "grpc/server.hpp"

namespace ksrv::grpc {

Connection::Connection(Server *server, int fd, uint32_t its_slot, uint32_t its_generation,
                       uint64_t now) noexcept
    : slot(its_slot), generation(its_generation), server_(server), now_(now), opened_ns_(now),
      ends_ns_(server->config.end(now, server->tag_of(its_slot, its_generation))), streams_(this, &socket_.out, now),
      socket_(this, &streams_, fd) {
    owner.begin();
}

void Connection::release() noexcept {
    if (refs_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
}

void Connection::look_by(uint64_t when) noexcept { server_->timers.lower(slot, when); }

MemoryBudget *Connection::budget() const noexcept { return server_->budget; }

// ---- the owner ------------------------------------------------------------------------------

void Connection::begin(bool watched, uint32_t events) noexcept {
    retain();  // closing releases the server's reference
    socket_.open();
    if (!streams_.session.open(server_->config) || !watched) close_now();
    owner.end();
    note(events);
    own();
    release();
}

void Connection::post(uint32_t events) noexcept {
    if (events) note(events);
    if (work_.fetch_add(1, std::memory_order_acq_rel) == 0) own();
}

// Works until `work_` is 0. The caller has made the first increment of `work_`.
void Connection::own() noexcept {
    retain();
    uint32_t seen;
    do {
        owner.begin();
        seen = work_.load(std::memory_order_acquire);
        run_owned(events_.exchange(0, std::memory_order_acq_rel));
        owner.end();
    } while (work_.fetch_sub(seen, std::memory_order_acq_rel) != seen);
    release();
}

void Connection::mail(Call *call) noexcept {
    // If it is in the mailbox already, `work_` makes the changes of this thread visible to the owner, which then reads
    // the mailbox.
    if (!call->links.mailed.exchange(true, std::memory_order_acq_rel)) {
        call->retain();
        Call *seen = mailbox_.load(std::memory_order_relaxed);
        do {
            call->links.next_mail = seen;
        } while (!mailbox_.compare_exchange_weak(seen, call, std::memory_order_release));
    }
    server_->send_later(this);
}

// Sends the answers of the calls in the mailbox, and opens their windows.
void Connection::drain_mailbox() noexcept {
    Call *taken = mailbox_.exchange(nullptr, std::memory_order_acquire), *first = nullptr;
    while (taken) {  // the mailbox is a stack: reverse it, so that the oldest is first
        Call *following = taken->links.next_mail;
        taken->links.next_mail = first;
        first = taken;
        taken = following;
    }
    while (first) {
        Call *call = first;
        first = call->links.next_mail;
        call->links.mailed.store(false, std::memory_order_release);
        if (call->stream > 0) streams_.answer(call);
        if (call->stream > 0) streams_.open_window(call);
        call->release();
    }
}

// Handles all events that were posted, the end of the connection first, then new work.
void Connection::run_owned(uint32_t events) noexcept {
    now_ = unsigned_now_ns();
    if (events & EVENT_READABLE) socket_.note_readable();
    if (events & EVENT_HUNG_UP) socket_.note_hung_up();
    drain_mailbox();
    if (stage_ == Stage::closed) return;
    if (stage_ == Stage::lingering) {
        if (events & (EVENT_CLOSE | EVENT_RECYCLE) || now_ >= lingers_until_ns_ || !socket_.discard()) close_now();
        return;
    }
    if (events & EVENT_GOODBYE) say_goodbye();
    if (events & EVENT_MAKE_ROOM) streams_.end_unfinished();
    if (events & EVENT_END_UNDELIVERED) streams_.end_undelivered();
    if (events & EVENT_TICK) tick();
    if (events & EVENT_RECYCLE) recycle();
    if (stage_ == Stage::closed) return;
    if (!socket_.is_agreed()) {
        const Handshake reached =
            events & EVENT_CLOSE ? Handshake::failed : socket_.shake_hands(events & EVENT_HANDSHAKE);
        if (reached == Handshake::failed) close_now();
        if (reached != Handshake::done) return;
    }
    if (events & EVENT_WRITABLE) socket_.note_writable();
    if (stage_ < Stage::ending && !socket_.read()) reach(Stage::ending);
    if (!socket_.flush() || events & EVENT_CLOSE) {
        close_now();
    } else if ((stage_ == Stage::ending || streams_.session.over()) && socket_.out.empty()) {
        linger();
    } else if (stage_ < Stage::ending && socket_.may_read()) {
        server_->read_again(this);
    }
}

// ---- the end --------------------------------------------------------------------------------

// Begins a graceful end: the first GOAWAY still accepts calls that are on their way (RFC 9113 6.8). `tick` sends the
// second.
void Connection::say_goodbye() noexcept {
    if (stage_ >= Stage::leaving) return;
    reach(Stage::leaving);
    socket_.allow_frames();
    goodbye_ns_ = now_;
    streams_.session.say_goodbye();
    streams_.session.ping();
    look_by(now_ + GOODBYE_NS);
}

// Sends GOAWAY, and closes once it is sent.
void Connection::end_after(const char *why) noexcept {
    streams_.session.go_away(http2::NO_ERROR, why);
    socket_.allow_frames();
    reach(Stage::ending);
}

// All frames are sent. Closing while the peer still sends would reset the connection, and the peer might lose GOAWAY.
void Connection::linger() noexcept {
    if (!socket_.end_sending()) {
        close_now();
        return;
    }
    streams_.close_all();
    reach(Stage::lingering);
    lingers_until_ns_ = now_ + SessionSocket::LINGER_NS;
    look_by(lingers_until_ns_);
    if (!socket_.discard()) close_now();
}

// Closes an idle connection to make room for another client, unless the next call is arriving.
void Connection::recycle() noexcept {
    if (!is_idle() || !socket_.is_agreed() || socket_.holds_unread()) return;
    server_->count(ServerCounter::recycled);
    end_after("the connection was idle, and another client waits");
    socket_.flush();
    close_now();
}

void Connection::close_now() noexcept {
    if (stage_ == Stage::closed) return;
    reach(Stage::closed);
    server_->forget(this);
    streams_.close_all();
    socket_.close();
    drain_mailbox();
    release();  // the server's reference
}

// ---- time limits ----------------------------------------------------------------------------

void Connection::tick() noexcept {
    const ServerConfig &config = server_->config;
    const bool is_late = !streams_.had_call && now_ - opened_ns_ >= config.head_ns;
    if (is_late) server_->count(ServerCounter::too_slow);
    if (now_ >= ends_ns_) say_goodbye();
    // Calls that were on their way at the first GOAWAY have arrived by now. The second GOAWAY names the last of them.
    const bool is_notified = stage_ == Stage::leaving && now_ - goodbye_ns_ >= GOODBYE_NS;
    if (!socket_.is_agreed() && (is_late || is_notified)) {  // the peer cannot read GOAWAY without TLS
        close_now();
        return;
    }
    if (is_late) end_after("no call came in time");
    if (is_notified) {
        streams_.session.go_away(http2::NO_ERROR);
        reach(Stage::gone);
    }
    if (is_idle() && stage_ < Stage::ending) {
        if (stage_ == Stage::gone)
            reach(Stage::ending);
        else if (now_ - counts().idle_since_ns.load(std::memory_order_relaxed) >= config.idle_ns)
            end_after("");
    }
    const bool is_slow = socket_.is_too_slow();
    if (is_slow) server_->count(ServerCounter::too_slow);
    if (is_slow || !answers_pings()) {
        close_now();
        return;
    }
    streams_.look_at_calls();
    server_->timers.set(slot, now_ + GOODBYE_NS);
}

// Pings a silent peer that has open calls. False if it has sent nothing since the last ping for too long.
bool Connection::answers_pings() noexcept {
    const ServerConfig &config = server_->config;
    const uint64_t received_ns = streams_.received_ns();
    if (is_idle() || !config.ping_ns) return true;
    if (ping_sent_ns_ && received_ns < ping_sent_ns_) return now_ - ping_sent_ns_ < config.ping_timeout_ns;
    ping_sent_ns_ = 0;
    if (now_ - received_ns >= config.ping_ns) {
        ping_sent_ns_ = now_;
        streams_.session.ping();
    }
    return true;
}

}  // namespace ksrv::grpc
