#include "reactor/listeners.hpp"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>

#include <new>

#include "base/clock.hpp"
#include "base/unix_peer.hpp"

namespace ksrv {

bool Listeners::set(const int *fds, size_t count, int epoll, uint64_t tag, bool shared) noexcept {
    try {
        fds_.assign(fds, fds + count);
    } catch (const std::bad_alloc &) {
        return false;
    }
    epoll_ = epoll;
    tag_ = tag;
    shared_ = shared;
    return true;
}

// After `accept_enabled(false)` returns, the caller may close the listeners: no thread uses their descriptors any more,
// not even for an earlier event. First, all waiting connections are accepted, because the kernel may have notified only
// this process of them.
void Listeners::accept_enabled(bool enabled) noexcept {
    if (enabled) wanted_.store(true);
    {
        std::lock_guard<std::mutex> guard(mutex_);
        if (!enabled || !paused_.load()) watch_all(enabled);
    }
    if (enabled) return;
    for (size_t i = 0; i < fds_.size(); ++i)
        use([&] { accept_from(static_cast<uint16_t>(i), LAST_ACCEPTS, false); });
    wanted_.store(false);
    {
        std::lock_guard<std::mutex> guard(mutex_);
        watch_all(false);  // a connection that closed in the meantime may have resumed accepting
    }
    while (using_.load() != 0) sched_yield();  // accepting never blocks
}

void Listeners::accept_some(uint16_t listener) noexcept {
    use([&] {
        // If other processes accept, only one connection, so that the next is offered to another process.
        accept_from(listener, shared_ ? 1 : ACCEPTS, true);
        if (shared_) requeue(listener);
    });
}

void Listeners::sweep(uint64_t now) noexcept {
    if (is_paused()) {
        use([&] { owner_->make_room(); });
        resume(now);
    }
    if (is_paused()) return;
    // If several processes watch a listener, the kernel notifies only one of them of a connection. If that process
    // accepts nothing (because it was killed, or is at its limit), the connection would wait until the next client
    // connects.
    for (size_t i = 0; i < fds_.size(); ++i) accept_some(static_cast<uint16_t>(i));
}

void Listeners::accept_from(uint16_t listener, int most, bool serves) noexcept {
    for (int i = 0; i < most; ++i) {
        void *place = owner_->take_place();
        if (!place) {
            pause(UNTIL_ROOM);
            return;
        }
        Accepted made;
        made.listener = listener;
        socklen_t length = sizeof made.peer;
        made.fd = accept4(fds_[listener], reinterpret_cast<sockaddr *>(&made.peer), &length,
                          SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (made.fd < 0) {
            const int error = errno;
            owner_->give_back_place(place);
            if (error == EINTR || error == ECONNABORTED || error == EPROTO) continue;
            if (error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM)
                pause(unsigned_now_ns() + DESCRIPTOR_PAUSE_NS);
            return;
        }
        note_unix_peer(made.fd, &made.peer);
        last_seen_ns_.store(unsigned_now_ns(), std::memory_order_relaxed);
        owner_->accepted(place, made, serves);
    }
}

// EPOLLEXCLUSIVE wakes the first waiting process in a listener's queue. At low load that would always be the same
// process, which would get all persistent connections. Therefore a process that accepted a connection moves to the end
// of the queue.
void Listeners::requeue(uint16_t listener) noexcept {
    std::lock_guard<std::mutex> guard(mutex_);
    if (!watching_) return;
    if (watch(listener, false) && watch(listener, true)) return;
    stop_watching(unsigned_now_ns() + DESCRIPTOR_PAUSE_NS);  // memory is short: the sweep tries again
}

void Listeners::watch_all(bool on) noexcept {
    if (watching_ == on) return;
    watching_ = on;
    bool done = true;
    for (size_t i = 0; i < fds_.size(); ++i) done &= watch(i, on);
    if (on && !done) stop_watching(unsigned_now_ns() + DESCRIPTOR_PAUSE_NS);
}

void Listeners::stop_watching(uint64_t until) noexcept {
    paused_until_ns_ = until;
    paused_.store(true);
    watch_all(false);
}

bool Listeners::watch(size_t listener, bool on) noexcept {
    epoll_event event{};
    event.events = EPOLLIN | EPOLLEXCLUSIVE;
    event.data.u64 = tag_ + listener;
    return epoll_ctl(epoll_, on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, fds_[listener], &event) == 0;
}

void Listeners::pause(uint64_t until) noexcept {
    std::lock_guard<std::mutex> guard(mutex_);
    if (!paused_.load()) owner_->accept_paused(until != UNTIL_ROOM);
    stop_watching(until);
}

// At the connection limit, a closed connection resumes accepting. Without descriptors, a timer does.
void Listeners::resume(uint64_t now) noexcept {
    std::lock_guard<std::mutex> guard(mutex_);
    if (!paused_.load() || !owner_->has_room()) return;
    if (paused_until_ns_ != UNTIL_ROOM && now < paused_until_ns_) return;
    paused_.store(false);
    if (wanted_) watch_all(true);
}

bool Listeners::client_waits() const noexcept {
    for (const int fd : fds_) {
        pollfd look{fd, POLLIN, 0};
        if (poll(&look, 1, 0) > 0 && look.revents & POLLIN) return true;
    }
    return false;
}

}  // namespace ksrv
