#include "server/http_connections.hpp"

#include <algorithm>
#include <utility>

#include "server/deadline.hpp"

namespace ksrv {

void HttpConnections::close_all() noexcept {
    for (uint32_t slot = 0; Connection *connection = at(slot); ++slot) {
        if (connection->phase.load() == Phase::free) continue;
        disconnects.unwatch(connection);
        close_transport(connection);
        release_buffers(connection);
    }
}

// ---- slots ------------------------------------------------------------------------------------

Connection *HttpConnections::of(uint64_t tag) noexcept {
    Connection *connection = at(Protocol::slot_of(tag));
    const bool same =
        connection && connection->generation.load(std::memory_order_acquire) == Protocol::generation_of(tag);
    return same ? connection : nullptr;
}

void HttpConnections::give_back_place(Connection *connection) noexcept {
    timers.set(connection->slot, Timers::NONE);
    give_back(connection);
}

// Skips a connection whose next message is arriving. Prefers a connection that its peer has closed.
bool HttpConnections::recycle_idle() noexcept {
    uint64_t tried = 0;
    for (int i = 0; i < RECYCLE_TRIES; ++i) {
        Connection *oldest = nullptr;
        uint64_t soonest = Timers::NONE;
        for (uint32_t slot = 0; slot < used(); ++slot) {
            Connection *connection = at(slot);
            const uint64_t when = timers.at(slot);
            if (when <= tried || when >= soonest || !connection->is_idle()) continue;
            oldest = connection;
            soonest = when;
        }
        if (!oldest) return false;
        tried = soonest;
        if (!oldest->claim_for_sweep()) continue;
        const Unread unread = look_for_unread(oldest);
        const bool closed = unread == Unread::closed;  // by its peer, although no event has reported it yet
        const bool silent = unread == Unread::none;
        if (oldest->is_idle() && (silent || closed)) {
            if (silent) counts_->count(ServerCounter::recycled);
            drop(oldest);
            return true;
        }
        arm(oldest, unsigned_now_ns());
    }
    return false;
}

// ---- who may call -----------------------------------------------------------------------------

bool HttpConnections::is_admitted(Connection *connection) noexcept {
    if (!config_->checks_callers || connection->admitted) return true;
    const Span &value = connection->head.authorization;
    connection->admitted =
        value.length != 0 && known_callers.knows(connection->buffer + value.offset, value.length);
    return connection->admitted;
}

// Remembers only "SCHEME TOKEN" with one blank. Otherwise one token with different numbers of blanks could fill the
// list, which has few entries and never loses one.
void HttpConnections::remember_caller(const Connection *connection) noexcept {
    const Span &value = connection->head.authorization;
    const unsigned char *const begin = connection->buffer + value.offset, *const end = begin + value.length;
    if (std::count_if(begin, end, [](unsigned char c) { return c == ' ' || c == '\t'; }) == 1)
        known_callers.add(begin, value.length);
}

// ---- arming -----------------------------------------------------------------------------------

// Sets the events that epoll reports of the connection. False if memory is short.
bool HttpConnections::tell_epoll(Connection *connection, uint32_t events) noexcept {
    epoll_event event{};
    event.events = events;
    event.data.u64 = connection->tag;
    const int change = connection->registered ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
    return epoll_ctl(loop_->epoll(), change, connection->fd, &event) == 0;
}

void HttpConnections::take_from_epoll(Connection *connection) noexcept {
    connection->settle(MUTED);
    if (connection->registered) epoll_ctl(loop_->epoll(), EPOLL_CTL_DEL, connection->fd, nullptr);
    connection->registered = false;
    connection->reported = 0;
}

void HttpConnections::arm(Connection *connection, uint64_t now) noexcept {
    uint32_t events = READING;
    switch (connection->phase.load(std::memory_order_relaxed)) {
    case Phase::send:
        events = EPOLLOUT;
        break;
    case Phase::awaiting_memory:  // the sweep used an earlier deadline
        arm_for_sweep(connection);
        return;
    case Phase::run:  // a connection is never armed in these phases
    case Phase::free:
        drop(connection);
        return;
    default:
        // epoll does not report bytes that were already read. Therefore ask for EPOLLOUT: the socket is usually
        // writable at once. If the client does not read its answers, the sweep handles these bytes.
        if (connection->holds_unseen() || connection->tls.wants_write) events |= EPOLLOUT;
    }
    timers.set(connection->slot, deadline(*connection, *config_, now, is_draining()));
    arm_for(connection, events);
}

// Gives the connection to epoll. The deadline must be set before. The caller must not use the connection afterwards.
// Most often epoll reports the right events already, and `arm_as_before` needs no system call.
void HttpConnections::arm_for(Connection *connection, uint32_t events) noexcept {
    if (events & EPOLLOUT) events |= EPOLLONESHOT;  // because EPOLLOUT would be reported again and again
    if (events == connection->reported && connection->arm_as_before()) return;
    connection->settle(ARMING);
    connection->reported = events & EPOLLONESHOT ? 0 : events;
    if (!tell_epoll(connection, events)) {
        drop(connection);
        return;
    }
    connection->registered = true;
    connection->claim.store(ARMED, std::memory_order_release);
}

void HttpConnections::arm_until(Connection *connection, uint64_t when) noexcept {
    timers.set(connection->slot, when);
    loop_->sweep_by(when);
    arm_for_sweep(connection);
}

// Gives the connection only to the sweep. The deadline must be set before.
void HttpConnections::arm_for_sweep(Connection *connection) noexcept {
    connection->settle(ARMING);
    if (connection->reported != 0 && !tell_epoll(connection, EPOLLONESHOT)) {
        drop(connection);
        return;
    }
    connection->reported = 0;
    connection->claim.store(ARMED, std::memory_order_release);
}

void HttpConnections::mute(Connection *connection) noexcept {
    uint8_t seen = OWNED;
    if (!connection->claim.compare_exchange_strong(seen, MUTING, std::memory_order_acq_rel)) return;
    if (connection->registered) tell_epoll(connection, EPOLLONESHOT);
    connection->claim.store(MUTED, std::memory_order_release);
}

void HttpConnections::begin_run(Connection *connection) noexcept {
    timers.set(connection->slot, Timers::NONE);
    connection->enter(Phase::run);
}

// Repeated by each sweep while draining, because an owner that read `draining` before it was set may set a timer later.
void HttpConnections::end_idle(uint64_t now) noexcept {
    const uint64_t soon = now + STOP_IDLE_NS;
    for (uint32_t slot = 0; Connection *connection = at(slot); ++slot) {
        const Phase phase = connection->phase.load(std::memory_order_relaxed);
        if (phase == Phase::idle || phase == Phase::handshake || phase == Phase::proxy_header)
            timers.lower(slot, soon);
    }
}

// ---- the end of connections -------------------------------------------------------------------

void HttpConnections::release_buffers(Connection *connection) noexcept {
    connection->body.release();
    process_budget().give_back_answer(connection->answer_counted, connection->answer_room);
    connection->answer_room = AnswerRoom::none;
    forget_outgoing(&connection->out);
}

void HttpConnections::drop(Connection *connection) noexcept {
    if (connection->phase.exchange(Phase::free, std::memory_order_acq_rel) == Phase::free) {
        counts_->count(ServerCounter::stray);  // a slot that is released twice would be given to two clients
        return;
    }
    if (connection->tls.flooded) counts_->count(ServerCounter::flood);
    disconnects.unwatch(connection);
    timers.set(connection->slot, Timers::NONE);
    connection->settle(MUTED);  // waits for a thread that mutes it: from here on no other thread uses the descriptor
    close_transport(connection);
    connection->registered = false;
    connection->reported = 0;
    defer_decref(connection);
    release_buffers(connection);
    connection->discard();
    give_back(connection);
    listeners_->note_closed(unsigned_now_ns());
}

void HttpConnections::defer_decref(Connection *connection) noexcept {
    Owners *owners = connection->out.owners;
    if (!owners) return;
    connection->out.owners = nullptr;
    owners->counted = connection->answer_counted;
    owners->room = std::exchange(connection->answer_room, AnswerRoom::none);
    if (decrefs.add(owners, connection->out.total)) loop_->wake();
}

}  // namespace ksrv
