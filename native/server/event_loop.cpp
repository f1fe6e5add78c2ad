// The HTTP server's threads: waiting in epoll, arming, deadlines.

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "server/server.hpp"

namespace ksrv {

thread_local HttpServer::IoThread HttpServer::io_thread;

HttpServer::HttpServer(const HttpServerConfig &wanted, Serve serve, void *owner)
    : config(wanted),
      connections(wanted.connections),
      deadlines(wanted.connections),
      serve_python_(serve),
      owner_(owner),
      threads_(new Thread[static_cast<size_t>(wanted.threads)]) {
    epoll_ = epoll_create1(EPOLL_CLOEXEC);
    handshakes_ = epoll_create1(EPOLL_CLOEXEC);
    wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    notify_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
}

HttpServer::~HttpServer() {
    for (uint32_t slot = 0; slot < connections.used(); ++slot) {
        Connection *connection = connections.at(slot);
        if (connection->phase.load() == Phase::free) continue;
        unwatch(connection);
        close_transport(connection);
        release_buffers(connection);
    }
    for (int fd : {epoll_, handshakes_, wake_, notify_})
        if (fd >= 0) close(fd);
}

bool HttpServer::listen_on(const int *listeners, size_t count) noexcept {
    if (epoll_ < 0 || handshakes_ < 0 || wake_ < 0 || notify_ < 0 || !deadlines.made()) return false;
    try {
        listeners_.assign(listeners, listeners + count);
        woken_.reserve(2 * config.connections);  // adding to them does not throw
        for (int i = 0; i < config.threads; ++i)
            threads_[static_cast<size_t>(i)].woken_streams.reserve(2 * config.connections);
    } catch (const std::bad_alloc &) {
        return false;
    }
    for (int fd : listeners_) {
        const int on = 1;  // inherited by accepted sockets; fails on unix sockets, which need none
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    }
    epoll_event woken{}, handshakes{};
    woken.events = handshakes.events = EPOLLIN;
    woken.data.u64 = WAKE_TAG;
    handshakes.data.u64 = HANDSHAKES_TAG;
    return epoll_ctl(epoll_, EPOLL_CTL_ADD, wake_, &woken) == 0 &&
           epoll_ctl(epoll_, EPOLL_CTL_ADD, handshakes_, &handshakes) == 0;
}

void HttpServer::run(int index) noexcept {
    if (index >= config.threads) {
        stand_by(index);
        return;
    }
    Thread &self = threads_[static_cast<size_t>(index)];
    io_thread = {this, index};
    epoll_event events[EVENTS];
    uint64_t now = unsigned_now_ns();
    while (!stopping_.load(std::memory_order_acquire)) {
        self.busy_since.store(0, std::memory_order_relaxed);
        send_gathered();  // also what was put together while another thread took the lead
        if (leader_.load(std::memory_order_acquire) != index) {
            follow(index);
            now = unsigned_now_ns();
            continue;
        }
        const bool timed = connections.open() != 0 || paused_.load(std::memory_order_relaxed);
        const bool waiting = to_run_.load(std::memory_order_relaxed) != 0;  // for Python
        const uint64_t sweep_in = next_sweep_.load(std::memory_order_relaxed) - now;
        const int until_sweep = sweep_in < SWEEP_NS ? static_cast<int>(sweep_in / 1000000u) + 1 : 100;
        const int timeout = waiting ? 2 : timed ? until_sweep : 1000;
        const int ready_count = epoll_wait(epoll_, events, EVENTS, timeout);
        now = unsigned_now_ns();
        self.busy_since.store(now, std::memory_order_relaxed);
        bool handshake_waits = false;
        for (int i = 0; i < ready_count; ++i) {
            const uint32_t low = static_cast<uint32_t>(events[i].data.u64);
            if (low == WAKE_TAG) {
                uint64_t woken;
                if (!stopping_.load(std::memory_order_acquire)) (void)!read(wake_, &woken, sizeof woken);
            } else if (low == HANDSHAKES_TAG) {
                handshake_waits = true;
            } else if (low & LISTENER_TAG) {
                accept_some(static_cast<uint16_t>(low & ~LISTENER_TAG), now);
            } else {
                look_at(events[i].data.u64, now);
            }
        }
        serve_woken_streams(index, now);
        uint64_t due = next_sweep_.load(std::memory_order_relaxed);
        if (now >= due && next_sweep_.compare_exchange_strong(due, now + SWEEP_NS)) sweep(now);
        send_gathered();
        serve(index);
        if (handshake_waits) go_on_with_handshake();
    }
    send_gathered();
    io_thread = {};
    self.busy_since.store(0, std::memory_order_relaxed);
}

void HttpServer::stop() noexcept {
    stopping_.store(true, std::memory_order_release);
    wake();
    {
        std::lock_guard<std::mutex> guard(follow_mutex_);
        follow_.notify_all();
    }
    {
        std::lock_guard<std::mutex> guard(relief_mutex_);
        relief_.notify_all();
    }
    stop_app_messages();
    stop_streams();
}

uint64_t HttpServer::stuck_ns() noexcept {
    const uint64_t now = unsigned_now_ns();
    uint64_t longest = 0;
    for (int i = 0; i < config.threads; ++i) {
        const uint64_t since = threads_[static_cast<size_t>(i)].busy_since.load();
        if (since && now > since && now - since > longest) longest = now - since;
    }
    return longest;
}

void HttpServer::wake() noexcept {
    const uint64_t one = 1;
    while (write(wake_, &one, sizeof one) < 0 && errno == EINTR) {
    }
}

Connection *HttpServer::connection_of(uint64_t tag) noexcept {
    Connection *connection = connections.at(static_cast<uint32_t>(tag));
    const bool same = connection && connection->generation.load(std::memory_order_acquire) == tag >> 32;
    return same ? connection : nullptr;
}

void HttpServer::notify() noexcept {
    const uint64_t one = 1;
    while (write(notify_, &one, sizeof one) < 0 && errno == EINTR) {
    }
}

// ---- arming and dropping --------------------------------------------------------------------

bool HttpServer::tell_epoll(Connection *connection, uint32_t events) noexcept {
    epoll_event event{};
    event.events = events;
    event.data.u64 = tag_of(connection);
    const int change = connection->registered ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
    return epoll_ctl(epoll_of(connection), change, connection->fd, &event) == 0;
}

// Takes an owned connection from the kernel altogether.
void HttpServer::take_from_epoll(Connection *connection) noexcept {
    connection->settle(MUTED);
    if (connection->registered) epoll_ctl(epoll_of(connection), EPOLL_CTL_DEL, connection->fd, nullptr);
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
    case Phase::handshake:
        deadlines.set(slot, connection->stage_ns + config.head_ns);
        arm(connection, READING);
        return;
    case Phase::idle: {
        const bool stopping = draining.load(std::memory_order_relaxed);
        const uint64_t timeout = !connection->saw_bytes ? config.head_ns
                                  : stopping && config.stop_idle_ns < config.idle_ns
                                      ? config.stop_idle_ns
                                      : config.idle_ns;
        deadlines.set(slot, now + timeout);
        arm(connection, READING);
        return;
    }
    case Phase::head: {
        // Bytes in the buffer that no thread has looked at make no event: being writable stands in for it.
        const bool unread = connection->searched != connection->filled;
        deadlines.set(slot, connection->message_ns + config.head_ns);
        arm(connection, unread ? READING | EPOLLOUT : READING);
        return;
    }
    case Phase::body:
        deadlines.set(slot, connection->ahead
                                ? connection->stage_ns + AHEAD_NS
                                : rate_deadline(connection->stage_ns, connection->body_got,
                                                connection->head.chunked
                                                    ? connection->chunks.announced()
                                                    : connection->head.content_length));
        arm(connection, READING);
        return;
    case Phase::awaiting_memory:  // the sweep meant an earlier deadline
        arm_for_sweep(connection);
        return;
    case Phase::send:
        deadlines.set(slot, connection->stage_ns + config.grace_ns);
        arm(connection, EPOLLOUT);
        return;
    case Phase::linger:
        deadlines.set(slot, connection->stage_ns + config.linger_ns);
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
    take_from_epoll(connection);  // which is that of handshakes
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
    connection->phase.store(Phase::idle, std::memory_order_relaxed);
    if (!adopt_http2 || !connection->tls.agreed_on("h2")) return true;
    hand_over(connection);
    return false;
}

// Gives back what the message and its answer held, but for Python's objects.
void HttpServer::release_buffers(Connection *connection) noexcept {
    if (connection->block) process_pool().release(connection->block);
    connection->block = nullptr;
    for (int i = 0; i < connection->out.block_count; ++i)
        process_pool().release(connection->out.blocks[i]);
    connection->out.block_count = 0;
    give_back(connection);
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
    deadlines.set(connection->slot, Deadlines::NONE);
    connection->settle(MUTED);  // from here on no thread looks at its descriptor
    if (connection->byte_stream) streams_.fetch_sub(1, std::memory_order_relaxed);
    close_transport(connection);
    connection->registered = false;
    connection->reported = 0;
    release_buffers(connection);
    defer_decref(connection->out.owners);
    connection->out.owners = nullptr;
    if (connection->capacity > HEAD_BUFFER) {
        free(connection->buffer);
        connection->buffer = nullptr;
        connection->capacity = 0;
    }
    connections.give_back(connection);
    if (paused_.load(std::memory_order_relaxed)) resume_accept(unsigned_now_ns());
}

// Python objects whose bytes were sent; the main thread gives them back, for this one has no GIL.
void HttpServer::defer_decref(Owners *owners) noexcept {
    if (!owners) return;
    Owners *last = owners;
    while (last->next) last = last->next;
    Owners *seen = deferred_decrefs_.load(std::memory_order_relaxed);
    do {
        last->next = seen;
    } while (!deferred_decrefs_.compare_exchange_weak(seen, owners, std::memory_order_release));
    notify();
}

Owners *HttpServer::take_deferred_decrefs() noexcept {
    return deferred_decrefs_.exchange(nullptr, std::memory_order_acquire);
}

// ---- events and deadlines -------------------------------------------------------------------

// Goes on with the connection of an event. Of a connection that another thread owns, epoll reports nothing more.
void HttpServer::look_at(uint64_t tag, uint64_t now) noexcept {
    Connection *connection = connection_of(tag);
    if (!connection) return;
    if (connection->claim_for_event()) {
        on_event(connection, now);
    } else {
        mute(connection);
    }
}

// Lets one TLS handshake take a step; the others wait in the epoll of handshakes, the longest waiting one in front.
// A signature takes as long as a hundred requests: those of open connections wait for one, however many are asked for.
void HttpServer::go_on_with_handshake() noexcept {
    epoll_event event;
    if (epoll_wait(handshakes_, &event, 1, 0) == 1) look_at(event.data.u64, unsigned_now_ns());
}

void HttpServer::on_event(Connection *connection, uint64_t now) noexcept {
    switch (connection->phase.load(std::memory_order_relaxed)) {
    case Phase::send: {
        const Sent sent = flush(connection);
        if (sent == Sent::blocked) {
            arm_for_phase(connection, now);
        } else if (sent == Sent::broken) {
            count(SERVER_DISCONNECTED);
            drop(connection);
        } else if (connection->stream.load(std::memory_order_relaxed) == StreamState::waiting) {
            resume_stream(connection);
        } else {
            defer_decref(connection->out.owners);
            connection->out.owners = nullptr;
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

void HttpServer::sweep(uint64_t now) noexcept {
    if (paused_.load(std::memory_order_relaxed)) {
        accepting_.fetch_add(1);
        if (wanted_.load() && connections.open() >= connections.most()) recycle_idle(true);
        accepting_.fetch_sub(1);
        resume_accept(now);
    }
    accept_forgotten(now);
    cancel_disconnected();
    deadlines.sweep(connections.used(), now, [this, now](uint32_t slot) {
        Connection *connection = connections.at(slot);
        if (!connection || !connection->claim_for_sweep()) return;
        if (!deadlines.due(slot, now)) {  // it moved on between the look and the claim
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
        if (connection->low_water > 1 && (connection->byte_stream || !connection->ahead)) {
            connection->slow_body = true;
            receive_body(connection, now);
            return;
        }
        if (connection->ahead) {
            uncount_missing(connection);
            receive_body(connection, now);
            return;
        }
        [[fallthrough]];
    case Phase::head:
        refuse(connection, prepared_answers[ANSWER_TOO_SLOW], SERVER_TOO_SLOW);
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
        if (phase == Phase::idle || phase == Phase::handshake) deadlines.lower(slot, soon);
    }
}

}  // namespace ksrv
