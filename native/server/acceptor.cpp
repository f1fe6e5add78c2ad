// Accepting connections, and making room where there are too many.

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>

#include "server/server.hpp"

namespace ksrv {

// Once `accept_enabled(false)` has returned, the caller may close the listeners: no thread uses their
// descriptors' numbers from then on, not even for an event from before.
void HttpServer::accept_some(uint16_t listener, uint64_t now) noexcept {
    accepting_.fetch_add(1);
    if (wanted_.load()) {
        accept_from(listener, now, config.shared ? 1 : ACCEPTS, true);
        if (config.shared) requeue_listener(listener);
    }
    accepting_.fetch_sub(1);
}

// Several processes may watch a listener, and the kernel tells one of them of a connection. Where that one
// accepts nothing after that (it was killed, or is at its limit), nobody would until the next client comes.
void HttpServer::accept_forgotten(uint64_t now) noexcept {
    if (paused_.load(std::memory_order_relaxed)) return;
    for (size_t i = 0; i < listeners_.size(); ++i) accept_some(static_cast<uint16_t>(i), now);
}

// Accepts up to `most` connections; without `serves`, the I/O threads get them from epoll.
void HttpServer::accept_from(uint16_t listener, uint64_t now, int most, bool serves) noexcept {
    for (int i = 0; i < most; ++i) {
        Connection *connection = connections.take();
        if (!connection && recycle_idle(true)) connection = connections.take();
        if (!connection) {
            pause_accept(Deadlines::NONE);
            return;
        }
        connection->peer_length = sizeof connection->peer;
        const int fd = accept4(listeners_[listener], reinterpret_cast<sockaddr *>(&connection->peer),
                               &connection->peer_length, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            const int error = errno;
            deadlines.set(connection->slot, Deadlines::NONE);
            connections.give_back(connection);
            if (error == EINTR || error == ECONNABORTED || error == EPROTO) continue;
            if (error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM)
                pause_accept(now + DESCRIPTOR_PAUSE_NS);
            return;
        }
        count(SERVER_ACCEPTED);
        begin_connection(connection, fd, listener, now);
        if (tls) {  // begins with the client's first bytes: a silent one costs no memory
            connection->phase.store(Phase::handshake, std::memory_order_release);
            arm_for_phase(connection, now);
            continue;
        }
        connection->phase.store(Phase::idle, std::memory_order_release);
        if (serves) {
            advance(connection, now);
        } else {
            arm_for_phase(connection, now);
        }
    }
}

// Makes a connection that was just taken from the table a new one.
void HttpServer::begin_connection(Connection *connection, int fd, uint16_t listener, uint64_t now) noexcept {
    connection->fd = fd;
    connection->low_water = 1;
    connection->listener = listener;
    connection->registered = false;
    connection->close_after = connection->large = false;
    connection->saw_bytes.store(false, std::memory_order_relaxed);
    connection->filled = 0;
    connection->block = nullptr;
    connection->reset_message();
    forget_outgoing(&connection->out);
    connection->out.sent = connection->out.taken = 0;
    connection->out.owners = nullptr;
    connection->stage_ns = now;
}

// The kernel wakes the first process in a listener's queue that waits, which would always be the same one
// while little is to do, and it would get every connection that is kept open. So a process that accepted one
// goes to the end of the queue.
void HttpServer::requeue_listener(uint16_t listener) noexcept {
    std::lock_guard<std::mutex> guard(accept_mutex_);
    if (!watching_) return;
    if (watch_listener(listener, false) && watch_listener(listener, true)) return;
    watch_listeners(false);  // there is no memory: the sweep tries again
    paused_until_ = unsigned_now_ns() + DESCRIPTOR_PAUSE_NS;
    paused_.store(true);
}

bool HttpServer::watch_listeners(bool on) noexcept {
    if (watching_ == on) return true;
    watching_ = on;
    bool done = true;
    for (size_t i = 0; i < listeners_.size(); ++i) done &= watch_listener(i, on);
    return done;
}

bool HttpServer::watch_listener(size_t listener, bool on) noexcept {
    epoll_event event{};
    event.events = EPOLLIN | EPOLLEXCLUSIVE;
    event.data.u64 = LISTENER_TAG | static_cast<uint32_t>(listener);
    return epoll_ctl(epoll_, on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, listeners_[listener], &event) == 0;
}

// What the kernel has told only this process of is accepted first: no other process would hear of it.
void HttpServer::accept_enabled(bool enabled) noexcept {
    if (enabled) wanted_.store(true);
    {
        std::lock_guard<std::mutex> guard(accept_mutex_);
        if (!enabled || !paused_.load()) watch_listeners(enabled);
    }
    if (!enabled && wanted_.load()) {
        for (size_t i = 0; i < listeners_.size(); ++i)
            accept_from(static_cast<uint16_t>(i), unsigned_now_ns(), LAST_ACCEPTS, false);
    }
    if (!enabled) {
        wanted_.store(false);
        std::lock_guard<std::mutex> guard(accept_mutex_);
        watch_listeners(false);  // a connection that closed meanwhile may have resumed accepting
    }
    while (!enabled && accepting_.load() != 0) sched_yield();  // accepting never waits
}

void HttpServer::pause_accept(uint64_t until) noexcept {
    std::lock_guard<std::mutex> guard(accept_mutex_);
    if (!paused_.load()) count(SERVER_ACCEPT_PAUSED);
    paused_until_ = until;
    paused_.store(true);
    watch_listeners(false);
}

bool HttpServer::client_waits() noexcept {
    for (int fd : listeners_) {
        pollfd look{fd, POLLIN, 0};
        if (poll(&look, 1, 0) > 0 && look.revents & POLLIN) return true;
    }
    return false;
}

// Closes the connection that has been idle for longest between two messages, so that connections kept
// open for nothing keep nobody out. One whose next message is on its way is left alone, and one that its
// peer has closed makes room first. The caller is counted in `accepting_`.
bool HttpServer::recycle_idle(bool for_waiting) noexcept {
    if (for_waiting && !client_waits()) return false;
    uint64_t tried = 0;
    for (int i = 0; i < RECYCLE_TRIES; ++i) {
        Connection *oldest = nullptr;
        uint64_t soonest = Deadlines::NONE;
        for (uint32_t slot = 0; slot < connections.used(); ++slot) {
            Connection *connection = connections.at(slot);
            const uint64_t when = deadlines.at(slot);
            if (when <= tried || when >= soonest || !connection->is_idle()) continue;
            oldest = connection;
            soonest = when;
        }
        if (!oldest) return false;
        tried = soonest;
        if (!oldest->claim_for_sweep()) continue;
        const Unread unread = look_for_unread(oldest);
        const bool closed = unread == Unread::closed;  // by its peer, which no event has told yet
        const bool silent = unread == Unread::none;
        if (oldest->is_idle() && (silent || closed)) {
            if (silent) count(SERVER_RECYCLED);
            drop(oldest);
            return true;
        }
        arm_for_phase(oldest, unsigned_now_ns());
    }
    return false;
}

// At the limit of connections the first one that closes resumes; without descriptors, the time.
void HttpServer::resume_accept(uint64_t now) noexcept {
    std::lock_guard<std::mutex> guard(accept_mutex_);
    if (!paused_.load() || connections.open() >= connections.most()) return;
    if (paused_until_ != Deadlines::NONE && now < paused_until_) return;
    paused_.store(false);
    if (wanted_) watch_listeners(true);
}

}  // namespace ksrv
