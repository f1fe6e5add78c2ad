// What becomes of events and timers: connections are armed, go on, and end.

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>

#include "base/python_call.hpp"
#include "server/server.hpp"

namespace ksrv {

HttpServer::HttpServer(EventLoop *loop, const HttpServerConfig &wanted, Serve serve, void *owner)
    : config(wanted),
      connections(wanted.connections),
      timers(wanted.connections),
      loop_(loop),
      serve_python_(serve),
      owner_(owner) {}

HttpServer::~HttpServer() {
    for (uint32_t slot = 0; slot < connections.used(); ++slot) {
        Connection *connection = connections.at(slot);
        if (connection->phase.load() == Phase::free) continue;
        unwatch(connection);
        close_transport(connection);
        release_buffers(connection);
    }
}

bool HttpServer::listen_on(const int *fds, size_t count) noexcept {
    if (!timers.made() || !woken_.reserve(2 * config.connections)) return false;
    try {
        proxy_refusals_.reserve(PROXY_REFUSALS);  // adding to them does not throw
    } catch (const std::bad_alloc &) {
        return false;
    }
    for (size_t i = 0; i < count; ++i) {
        const int on = 1;  // inherited by accepted sockets; fails on unix sockets, which need none
        setsockopt(fds[i], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    }
    return loop_->add(this, config.connections, fds, count, config.shared);
}

void HttpServer::stop() noexcept {
    stopping_.store(true, std::memory_order_release);
    app_queue_.stop();
    stop_streams();
}

NextTurn HttpServer::next_turn() const noexcept {
    if (woken_.waits()) return NextTurn::at_once;
    return connections.open() != 0 || decrefs.any() ? NextTurn::at_sweep : NextTurn::any;
}

Connection *HttpServer::connection_of(uint64_t tag) noexcept {
    Connection *connection = connections.at(slot_of(tag));
    const bool same = connection && connection->generation.load(std::memory_order_acquire) == generation_of(tag);
    return same ? connection : nullptr;
}

void HttpServer::work_in_python() noexcept {
    call_python([this] { serve_python_(owner_); });
}

// ---- arming and dropping --------------------------------------------------------------------

bool HttpServer::tell_epoll(Connection *connection, uint32_t events) noexcept {
    epoll_event event{};
    event.events = events;
    event.data.u64 = tag_of(connection);
    const int change = connection->registered ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
    return epoll_ctl(loop_->epoll(), change, connection->fd, &event) == 0;
}

// Takes an owned connection from the kernel altogether.
void HttpServer::take_from_epoll(Connection *connection) noexcept {
    connection->settle(MUTED);
    if (connection->registered) epoll_ctl(loop_->epoll(), EPOLL_CTL_DEL, connection->fd, nullptr);
    connection->registered = false;
    connection->reported = 0;
}

// Gives the connection to the kernel. Its deadline must be set; it must not be used afterwards.
void HttpServer::arm(Connection *connection, uint32_t events) noexcept {
    if (events & EPOLLIN && connection->needs_no_event()) events |= EPOLLOUT;
    if (events & EPOLLOUT) events |= EPOLLONESHOT;  // which stays true
    if (events == connection->reported && connection->arm_as_before()) return;
    connection->settle(ARMING);
    if (connection->byte_stream) {
        connection->byte_stream->arm(events);
        connection->claim.store(ARMED, std::memory_order_release);
        return;
    }
    connection->reported = events & EPOLLONESHOT ? 0 : events;
    if (!tell_epoll(connection, events)) {
        drop(connection);
        return;
    }
    connection->registered = true;
    connection->claim.store(ARMED, std::memory_order_release);
}

// Gives the connection to the sweep alone. Its deadline must be set.
void HttpServer::arm_for_sweep(Connection *connection) noexcept {
    connection->settle(ARMING);
    if (connection->byte_stream) connection->byte_stream->arm(0);
    if (connection->reported != 0 && !tell_epoll(connection, EPOLLONESHOT)) {
        drop(connection);
        return;
    }
    connection->reported = 0;
    connection->claim.store(ARMED, std::memory_order_release);
}

// Has epoll report nothing more of a connection whose owner is busy, but for one reset.
void HttpServer::mute(Connection *connection) noexcept {
    uint8_t seen = OWNED;
    if (!connection->claim.compare_exchange_strong(seen, MUTING, std::memory_order_acq_rel)) return;
    if (connection->registered) tell_epoll(connection, EPOLLONESHOT);
    connection->claim.store(MUTED, std::memory_order_release);
}

void HttpServer::arm_for_phase(Connection *connection, uint64_t now) noexcept {
    const uint32_t slot = connection->slot;
    switch (connection->phase.load(std::memory_order_relaxed)) {
    case Phase::proxy_header:
    case Phase::handshake:
        timers.set(slot, connection->stage_ns + config.head_ns);
        arm(connection, READING);
        return;
    case Phase::idle: {
        const bool stopping = draining.load(std::memory_order_relaxed);
        const uint64_t timeout = !connection->saw_bytes ? config.head_ns
                                  : stopping && config.stop_idle_ns < config.idle_ns
                                      ? config.stop_idle_ns
                                      : config.idle_ns;
        // At its end a connection is closed only if it is silent, so that a busy one is ended by an answer.
        const uint64_t end = connection->ends_ns == Timers::NONE ? Timers::NONE
                                                                 : std::max(connection->ends_ns, now + config.stop_idle_ns);
        timers.set(slot, std::min(now + timeout, end));
        arm(connection, READING);
        return;
    }
    case Phase::head: {
        // Bytes in the buffer that no thread has looked at make no event: being writable stands in for it.
        const bool unread = connection->searched != connection->filled;
        timers.set(slot, connection->message_ns + config.head_ns);
        arm(connection, unread ? READING | EPOLLOUT : READING);
        return;
    }
    case Phase::body:
        timers.set(slot, connection->body.prereserved
                                ? connection->stage_ns + AHEAD_NS
                                : rate_deadline(connection->stage_ns, connection->body.got,
                                                connection->body.announced(connection->head)));
        arm(connection, READING);
        return;
    case Phase::awaiting_memory:  // the sweep meant an earlier deadline
        arm_for_sweep(connection);
        return;
    case Phase::send:
        timers.set(slot, connection->stage_ns + config.grace_ns);
        arm(connection, EPOLLOUT);
        return;
    case Phase::linger:
        timers.set(slot, connection->stage_ns + config.linger_ns);
        arm(connection, READING);
        return;
    default:
        drop(connection);
    }
}

// Goes on with a TLS handshake; true when it is done, and the connection is still the caller's.
bool HttpServer::shake_hands(Connection *connection, uint64_t now) noexcept {
    if (!connection->tls && !connection->tls.begin(*tls, connection->fd)) {
        drop(connection);
        return false;
    }
    const Handshake outcome = connection->tls.shake_hands();
    if (outcome == Handshake::waits) {
        arm_for_phase(connection, now);
        return false;
    }
    if (outcome == Handshake::plain_http) {
        connection->tls.end();
        refuse(connection, prepared_answers[ANSWER_NOT_TLS], SERVER_TLS_REFUSED);
        return false;
    }
    if (outcome == Handshake::failed) {
        count(SERVER_TLS_REFUSED);
        connection->tls.end();  // which has told the client why
        linger(connection, now);
        return false;
    }
    count(connection->tls.resumed() ? SERVER_TLS_RESUMED : SERVER_TLS_AGREED);
    connection->saw_bytes = true;  // its peer may keep idle connections
    connection->enter(Phase::idle);
    if (!adopt_http2 || !connection->tls.agreed_on("h2")) return true;
    hand_over(connection);
    return false;
}

// Gives back what the message and its answer held, but for Python's objects.
void HttpServer::release_buffers(Connection *connection) noexcept {
    connection->body.release();
    for (int i = 0; i < connection->out.block_count; ++i)
        process_pool().release(connection->out.blocks[i]);
    connection->out.block_count = 0;
    process_budget().give_back_answer(connection->answer_counted, connection->answer_room);
    connection->answer_room = AnswerRoom::none;
    forget_outgoing(&connection->out);
}

void HttpServer::drop(Connection *connection) noexcept {
    if (connection->phase.exchange(Phase::free, std::memory_order_acq_rel) == Phase::free) {
        count(SERVER_STRAY);  // a place that is given back twice would be given to two clients
        return;
    }
    if (connection->tls.flooded) count(SERVER_FLOOD);
    unwatch(connection);
    end_stream_of(connection);
    timers.set(connection->slot, Timers::NONE);
    connection->settle(MUTED);  // from here on no thread looks at its descriptor
    if (connection->byte_stream) streams_.fetch_sub(1, std::memory_order_relaxed);
    close_transport(connection);
    connection->registered = false;
    connection->reported = 0;
    defer_decref(connection);
    release_buffers(connection);
    connection->discard();
    connections.give_back(connection);
    listeners.note_closed(unsigned_now_ns());
}

// Has a thread with the GIL give back the Python objects whose bytes were sent.
void HttpServer::defer_decref(Connection *connection) noexcept {
    Owners *owners = connection->out.owners;
    connection->out.owners = nullptr;
    if (owners && decrefs.add(owners, connection->out.total)) loop_->wake();
}

// ---- events and deadlines -------------------------------------------------------------------

// Goes on with the connection of an event. Of a connection that another thread owns, epoll reports nothing more. A handshake waits
// for its turn, owned by the queue.
void HttpServer::on_event(uint64_t tag, uint32_t, uint64_t now) noexcept {
    Connection *connection = connection_of(tag);
    if (!connection) return;
    if (!connection->claim_for_event()) {
        mute(connection);
    } else if (connection->phase.load(std::memory_order_relaxed) == Phase::handshake) {
        loop_->queue_handshake(tag);
    } else {
        go_on(connection, now);
    }
}

void HttpServer::on_handshake(uint64_t tag, uint64_t now) noexcept {
    if (Connection *connection = connection_of(tag)) advance(connection, now);
}

void HttpServer::go_on(Connection *connection, uint64_t now) noexcept {
    switch (connection->phase.load(std::memory_order_relaxed)) {
    case Phase::send: {
        const bool piece = connection->stream.load(std::memory_order_relaxed) == StreamState::waiting;
        const Sent sent = flush(connection, !piece);
        if (sent == Sent::blocked) {
            arm_for_phase(connection, now);
        } else if (sent == Sent::broken) {
            count(SERVER_DISCONNECTED);
            drop(connection);
        } else if (piece) {
            resume_stream(connection);
        } else {
            defer_decref(connection);
            if (finish(connection, now)) advance(connection, now);
        }
        return;
    }
    case Phase::linger:
        drain_lingering(connection, now);
        return;
    case Phase::awaiting_memory:  // an event from before that
        arm_for_sweep(connection);
        return;
    default:
        advance(connection, now);  // where a reset or a half-closed peer shows in recv
    }
}

void HttpServer::on_sweep(uint64_t now) noexcept {
    decrefs.sweep();
    cancel_disconnected();
    timers.sweep(connections.used(), now, [this, now](uint32_t slot) {
        Connection *connection = connections.at(slot);
        if (!connection || !connection->claim_for_sweep()) return;
        if (!timers.due(slot, now)) {  // it moved on between the look and the claim
            arm_for_phase(connection, now);
            return;
        }
        expire(connection, now);
    });
}

void HttpServer::expire(Connection *connection, uint64_t now) noexcept {
    const Phase phase = connection->phase.load(std::memory_order_relaxed);
    if (receives(phase) && !connection->looked_late &&
        look_for_unread(connection) == Unread::some) {
        connection->looked_late = true;  // this server is late, not the client
        advance(connection, now);
        return;
    }
    switch (phase) {
    case Phase::awaiting_memory:
        retry_memory(connection, now);
        return;
    case Phase::body:
        // Bytes below the mark count as well; those of a stream lie where the missing ones would be given back.
        if (connection->low_water > 1 && (connection->byte_stream || !connection->body.prereserved)) {
            connection->body.slow = true;
            receive_body(connection, now);
            return;
        }
        if (connection->body.prereserved) {
            connection->body.uncount_missing();
            receive_body(connection, now);
            return;
        }
        [[fallthrough]];
    case Phase::head:
        refuse(connection, prepared_answers[ANSWER_TOO_SLOW], SERVER_TOO_SLOW);
        return;
    case Phase::proxy_header:
        count(SERVER_TOO_SLOW);
        refuse_proxied(connection, ProxyFault::slow);
        return;
    case Phase::handshake:
        count(SERVER_TOO_SLOW);
        drop(connection);
        return;
    case Phase::idle:
        count(SERVER_IDLE_CLOSED);
        end_sending(connection);
        drop(connection);
        return;
    case Phase::send:
        if (still_reading(connection, now)) {
            arm_for_phase(connection, now);
        } else {
            count(SERVER_TOO_SLOW);
            drop(connection);
        }
        return;
    default:
        drop(connection);
    }
}

void HttpServer::drain() noexcept {
    draining.store(true, std::memory_order_release);
    const uint64_t soon = unsigned_now_ns() + config.stop_idle_ns;
    for (uint32_t slot = 0; slot < connections.used(); ++slot) {
        const Phase phase = connections.at(slot)->phase.load(std::memory_order_relaxed);
        if (phase == Phase::idle || phase == Phase::handshake || phase == Phase::proxy_header)
            timers.lower(slot, soon);
    }
}

}  // namespace ksrv
