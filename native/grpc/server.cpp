#include "grpc/server.hpp"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <new>

#include "base/python_call.hpp"
#include "server/fast_path.hpp"

namespace ksrv::grpc {

namespace {

// Of an I/O thread: its server, and its number while it is in Python.
thread_local Server *loop_of = nullptr;
thread_local int visiting = -1;

// False where the connection is in the list already.
bool add(std::atomic<Connection *> *list, Connection *connection, ListPlace Connection::*place) noexcept {
    if ((connection->*place).listed.exchange(true, std::memory_order_acq_rel)) return false;
    connection->retain();
    Connection *seen = list->load(std::memory_order_relaxed);
    do {
        (connection->*place).next = seen;
    } while (!list->compare_exchange_weak(seen, connection, std::memory_order_release));
    return true;
}

template <typename Visit>
void empty(std::atomic<Connection *> *list, ListPlace Connection::*place, Visit visit) noexcept {
    Connection *connection = list->exchange(nullptr, std::memory_order_acquire);
    while (connection) {
        Connection *following = (connection->*place).next;
        (connection->*place).listed.store(false, std::memory_order_release);
        visit(connection);
        connection->release();
        connection = following;
    }
}

}  // namespace

Server::Server(const ServerConfig &wanted, MemoryBudget *bytes, ServeCalls serve, void *owner)
    : config(wanted), budget(bytes), serve_python_(serve), owner_(owner) {
    epoll_ = epoll_create1(EPOLL_CLOEXEC);
    wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
}

Server::~Server() {
    close_all();
    for (int fd : {epoll_, wake_})
        if (fd >= 0) close(fd);
}

void Server::add_method(const Method &method) { methods_[method.path] = method; }

const Method *Server::method(const std::string &path) const noexcept {
    const auto found = methods_.find(path);
    return found == methods_.end() ? nullptr : &found->second;
}

bool Server::listen_on(const int *listeners, size_t count) noexcept {
    if (epoll_ < 0 || wake_ < 0) return false;
    try {
        listeners_.assign(listeners, listeners + count);
        connections_.assign(config.connections, nullptr);
        open_.reserve(config.connections);
        free_.reserve(config.connections);
        for (uint32_t slot = config.connections; slot > 0; --slot) free_.push_back(slot - 1);
    } catch (const std::bad_alloc &) {
        return false;
    }
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = WAKE_TAG;
    return epoll_ctl(epoll_, EPOLL_CTL_ADD, wake_, &event) == 0;
}

// ---- connections ----------------------------------------------------------------------------

// Once `accept_enabled(false)` has returned, no thread uses the listeners' descriptors. What the kernel has
// told only this process of is accepted first: no other process would hear of it.
void Server::accept_enabled(bool enabled) noexcept {
    if (accepts_.load() == enabled) return;
    if (enabled) accepts_.store(true);
    watch_listeners(enabled);
    if (enabled) return;
    for (size_t i = 0; i < listeners_.size(); ++i) accept_some(i);
    accepts_.store(false);
    watch_listeners(false);  // the sweep may have gone on with them
    while (accepting_.load() != 0) sched_yield();  // accepting never waits
}

void Server::watch_listeners(bool on) noexcept {
    std::lock_guard<std::mutex> guard(accept_mutex_);
    if (watches_listeners_ == on || (on && !accepts_.load())) return;
    watches_listeners_ = on;
    for (size_t i = 0; i < listeners_.size(); ++i) {
        epoll_event event{};
        event.events = EPOLLIN | EPOLLEXCLUSIVE;
        event.data.u64 = LISTENER_TAG | i;
        epoll_ctl(epoll_, on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, listeners_[i], &event);
    }
}

// There are no descriptors: the listeners would be reported without end.
void Server::pause_accept() noexcept {
    paused_until_ns_.store(unsigned_now_ns() + DESCRIPTOR_PAUSE_NS);
    watch_listeners(false);
}

// Several processes may watch a listener, and the kernel tells one of them of a connection. Where that one
// accepts nothing after that (it was killed), nobody would until the next client comes.
void Server::accept_forgotten(uint64_t now) noexcept {
    if (!accepts_.load(std::memory_order_relaxed) || now < paused_until_ns_.load()) return;
    for (size_t i = 0; i < listeners_.size(); ++i) accept_some(i);
    if (now >= paused_until_ns_.load()) watch_listeners(true);
}

void Server::accept_some(size_t listener) noexcept {
    accepting_.fetch_add(1);
    for (int i = 0; accepts_.load() && i < ACCEPTS; ++i) {
        sockaddr_storage address{};
        socklen_t length = sizeof address;
        const int fd = accept4(listeners_[listener], reinterpret_cast<sockaddr *>(&address), &length,
                               SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            if (errno == EINTR || errno == ECONNABORTED || errno == EPROTO) continue;
            if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) pause_accept();
            break;
        }
        if (!adopt(fd, &address, length)) {
            count(GRPC_REFUSED_CONNECTIONS);
            close(fd);
        }
    }
    accepting_.fetch_sub(1);
}

void Server::serve_with(HttpServer *http) noexcept {
    http_ = http;
    http->http2_owner = this;
    http->adopt_http2 = [](void *owner, const AcceptedHttp2 &accepted) {
        return static_cast<Server *>(owner)->adopt(accepted.fd, &accepted.peer, accepted.peer_length, &accepted);
    };
    http->send_streams = [](void *owner) { static_cast<Server *>(owner)->send_deferred(); };
}

// Serves an accepted socket; false where there is no room, and the descriptor stays the caller's.
bool Server::adopt(int fd, const sockaddr_storage *address, socklen_t length,
                   const AcceptedHttp2 *accepted) noexcept {
    Connection *connection;
    {
        std::lock_guard<std::mutex> guard(connections_mutex_);
        if (free_.empty()) return false;
        const uint32_t slot = free_.back();
        generations_ = (generations_ + 1) & 0x3fffffff;
        connection = new (std::nothrow) Connection(this, fd, slot, generations_, unsigned_now_ns());
        if (!connection) return false;
        free_.pop_back();
        connections_[slot] = connection;
        connection->place = open_.size();
        open_.push_back(connection);
    }
    connection->address = *address;
    connection->address_length = length;
    open_connections.fetch_add(1, std::memory_order_relaxed);
    count(GRPC_ACCEPTED);
    const bool opened = (accepted ? connection->open_accepted(*accepted) : connection->open()) && watch(connection, fd);
    // A drain that began before this connection was listed has told it nothing.
    connection->begin(opened, draining.load() ? EVENT_READABLE | EVENT_GOODBYE : EVENT_READABLE);
    return true;
}

bool Server::watch(Connection *connection, int fd) noexcept {
    epoll_event event{};
    event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
    event.data.u64 = static_cast<uint64_t>(connection->generation) << 32 | connection->slot;
    return epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) == 0;
}

void Server::forget(Connection *connection) noexcept {
    std::lock_guard<std::mutex> guard(connections_mutex_);
    connections_[connection->slot] = nullptr;
    open_.back()->place = connection->place;
    open_[connection->place] = open_.back();
    open_.pop_back();
    free_.push_back(connection->slot);
    open_connections.fetch_sub(1, std::memory_order_relaxed);
}

Connection *Server::at(uint64_t tag) noexcept {
    const size_t slot = static_cast<uint32_t>(tag);
    std::lock_guard<std::mutex> guard(connections_mutex_);
    Connection *connection = slot < connections_.size() ? connections_[slot] : nullptr;
    if (!connection || connection->generation != tag >> 32) return nullptr;
    connection->retain();
    return connection;
}

// From the last one to the first: what takes the place of a connection that is closed meanwhile was visited before,
// and none is left out.
template <typename Visit> void Server::each(Visit visit) noexcept {
    for (size_t left = SIZE_MAX; left > 0;) {
        Connection *connection;
        {
            std::lock_guard<std::mutex> guard(connections_mutex_);
            left = std::min(left, open_.size());
            if (left == 0) return;
            connection = open_[--left];
            connection->retain();
        }
        visit(connection);
        connection->release();
    }
}

void Server::record(Call *call, uint64_t now) noexcept {
    try {
        CallRecord made;
        made.path = call->path;
        made.request_id.assign(call->request_id.text, call->request_id.length);
        made.duration_ns = now > call->opened_ns ? now - call->opened_ns : 0;
        made.answered_bytes = call->answer_sent;
        made.peer = call->connection->address;
        made.peer_length = call->connection->address_length;
        {
            std::lock_guard<std::mutex> guard(call->lock);
            made.status = call->finished && !call->cancelled ? call->status : CANCELLED;
            made.model = call->model;
            made.version = call->version;
        }
        std::lock_guard<std::mutex> guard(records_mutex_);
        if (records_.size() < RECORDS) {
            records_.push_back(std::move(made));
            return;
        }
    } catch (const std::bad_alloc &) {
        // A line of the access log is not worth a call.
    }
    count(GRPC_LOST_RECORDS);
}

void Server::take_records(std::vector<CallRecord> *out) {
    std::lock_guard<std::mutex> guard(records_mutex_);
    out->swap(records_);
    records_.clear();
}

Connection *Server::with_most(std::atomic<uint32_t> Connection::*count, uint32_t above) noexcept {
    Connection *largest = nullptr;
    uint32_t most = above;
    each([&](Connection *connection) {
        const uint32_t its = (connection->*count).load(std::memory_order_relaxed);
        if (its <= most) return;
        most = its;
        connection->retain();
        if (largest) largest->release();
        largest = connection;
    });
    return largest;
}

void Server::make_room() noexcept {
    Connection *largest = with_most(&Connection::unfinished, 0);
    if (!largest) return;
    largest->post(EVENT_MAKE_ROOM);
    largest->release();
}

void Server::free_streams(uint32_t mine, uint64_t now) noexcept {
    uint64_t due = next_free_streams_.load(std::memory_order_relaxed);
    if (now < due || !next_free_streams_.compare_exchange_strong(due, now + FREE_STREAMS_NS)) return;
    Connection *largest = with_most(&Connection::stalled, 2 * mine);
    if (!largest) return;
    largest->post(EVENT_FREE_STREAMS);
    largest->release();
}

// Ends answered calls whose clients take no answers, where there are more of them than the server holds: the oldest of
// the connection that has most of them. Answers that have just been made are left to their clients while there are less than
// twice as many. Where the connection has an owner just now, it may be done with them.
void Server::end_untaken() noexcept {
    uint32_t left = untaken.load(std::memory_order_relaxed), before = 0;
    while (left > config.calls && left != before) {
        const bool of_all = left > 2 * config.calls;
        Connection *largest = with_most(of_all ? &Connection::untaken : &Connection::overdue, 0);
        if (!largest) return;
        largest->post(of_all ? EVENT_END_UNTAKEN : EVENT_END_OVERDUE);
        largest->release();
        before = left;
        left = untaken.load(std::memory_order_relaxed);
    }
}

void Server::drain() noexcept {
    draining.store(true);
    post_all(EVENT_GOODBYE);
}

void Server::close_all() noexcept { post_all(EVENT_CLOSE); }

void Server::post_all(uint32_t events) noexcept {
    each([events](Connection *connection) { connection->post(events); });
}

void Server::sweep(uint64_t now) noexcept {
    accept_forgotten(now);
    each([now](Connection *connection) {
        if (now >= connection->due_ns.load(std::memory_order_relaxed)) connection->post(EVENT_TICK);
    });
    end_untaken();
    if (decrefs_.load(std::memory_order_relaxed)) decref_bytes_.fetch_add(DECREF_BYTES);
}

void Server::read_again(Connection *connection) noexcept {
    if (add(&unread_, connection, &Connection::unread) && loop_of != this) wake();
}

void Server::read_waiting() noexcept {
    empty(&unread_, &Connection::unread, [](Connection *connection) { connection->post(EVENT_READABLE); });
}

bool Server::read_soon(Connection *connection) noexcept {
    if (!gathering_.load(std::memory_order_relaxed)) gathered_ns_.store(unsigned_now_ns() + GATHER_NS);
    const bool added = add(&gathering_, connection, &Connection::gathering);
    if (added && loop_of != this) wake();
    return added;
}

void Server::read_gathered(uint64_t now) noexcept {
    if (!gathering_.load(std::memory_order_relaxed) || now < gathered_ns_.load()) return;
    empty(&gathering_, &Connection::gathering, [](Connection *connection) { connection->post(EVENT_GATHERED); });
}

// The queue of TLS handshakes keeps the order of their coming, so that a flood of new ones cannot hold up those that
// came before it.
void Server::queue_handshake(Connection *connection) noexcept {
    ListPlace &place = connection->shaking;
    if (place.listed.exchange(true, std::memory_order_acq_rel)) return;
    connection->retain();
    place.next = nullptr;
    {
        std::lock_guard<std::mutex> guard(handshakes_mutex_);
        (last_handshake_ ? last_handshake_->shaking.next : first_handshake_) = connection;
        last_handshake_ = connection;
        handshakes_wait_.store(true);
    }
    if (loop_of != this) wake();
}

// Lets one TLS handshake take a step. A signature takes as long as a hundred calls: those of open connections wait for
// one in each turn of the event loop, however many are asked for.
void Server::go_on_with_handshake() noexcept {
    bool went_on = false;
    while (!went_on && handshakes_wait_.load()) {
        Connection *connection;
        {
            std::lock_guard<std::mutex> guard(handshakes_mutex_);
            connection = first_handshake_;
            if (!connection) return;
            first_handshake_ = connection->shaking.next;
            if (!first_handshake_) last_handshake_ = nullptr;
            handshakes_wait_.store(first_handshake_ != nullptr);
        }
        connection->shaking.listed.store(false, std::memory_order_release);
        went_on = !connection->is_closed();
        if (went_on) connection->post(EVENT_HANDSHAKE);
        connection->release();
    }
}

// ---- calls ----------------------------------------------------------------------------------

void Server::run_later(Call *call, int reason) noexcept {
    if (call->run.fetch_or(reason, std::memory_order_acq_rel) != 0) return;  // it is in the queue
    call->retain();
    {
        std::lock_guard<std::mutex> guard(run_mutex_);
        call->run_next = nullptr;
        (run_last_ ? run_last_->run_next : run_first_) = call;
        run_last_ = call;
        to_run_.fetch_add(1, std::memory_order_relaxed);
    }
    if (loop_of != this) wake();
}

Call *Server::next_to_run(int *reasons) noexcept {
    const uint64_t now = unsigned_now_ns();
    const uint64_t began = request_since_.exchange(now, std::memory_order_relaxed);
    if (now - began > DEFER_NS) send_deferred();
    std::lock_guard<std::mutex> guard(run_mutex_);
    Call *call = run_first_;
    if (!call) return nullptr;
    run_first_ = call->run_next;
    if (!run_first_) run_last_ = nullptr;
    call->run_next = nullptr;
    to_run_.fetch_sub(1, std::memory_order_relaxed);
    *reasons = call->run.exchange(0, std::memory_order_acq_rel);
    return call;
}

size_t Server::take_fast_calls(Call *first, Call **out, size_t room) noexcept {
    size_t count = 0;
    if (room == 0) return count;
    const ModelSignature *signature = first->fast->signature;
    std::lock_guard<std::mutex> guard(run_mutex_);
    while (count < room && run_first_ && run_first_->fast && run_first_->fast->signature == signature) {
        int alone = RUN_READY;
        if (!run_first_->run.compare_exchange_strong(alone, 0, std::memory_order_acq_rel)) break;
        out[count++] = run_first_;
        run_first_ = run_first_->run_next;
        if (!run_first_) run_last_ = nullptr;
        to_run_.fetch_sub(1, std::memory_order_relaxed);
    }
    return count;
}

void Server::send_later(Connection *connection) noexcept {
    const bool in_visit = loop_of == this && visiting >= 0 && leader_.load(std::memory_order_relaxed) == visiting;
    if (!in_visit && !(http_ && http_->gathers_streams())) {
        connection->work();
        return;
    }
    add(&deferred_, connection, &Connection::deferred);
}

void Server::send_deferred() noexcept {
    if (deferred_.load(std::memory_order_relaxed)) empty(&deferred_, &Connection::deferred, [](Connection *connection) { connection->work(); });
}

void Server::defer_decref(Payload *payload) noexcept {
    const uint64_t size = payload->size;
    Payload *seen = decrefs_.load(std::memory_order_relaxed);
    do {
        payload->next = seen;
    } while (!decrefs_.compare_exchange_weak(seen, payload, std::memory_order_release));
    if (decref_bytes_.fetch_add(size) + size >= DECREF_BYTES && loop_of != this) wake();
}

// ---- threads --------------------------------------------------------------------------------

void Server::wake() noexcept {
    const uint64_t one = 1;
    while (write(wake_, &one, sizeof one) < 0 && errno == EINTR) {
    }
}

void Server::stop() noexcept {
    stopping_.store(true, std::memory_order_release);
    wake();
    std::lock_guard<std::mutex> guard(follow_mutex_);
    follow_.notify_all();
    watch_.notify_all();
}

void Server::run(int index) noexcept {
    loop_of = this;
    epoll_event events[EVENTS];
    while (!stopping_.load(std::memory_order_acquire)) {
        if (leader_.load(std::memory_order_acquire) != index) {
            follow(index);
            continue;
        }
        const bool waiting = wants_python() || in_python_.load() != NOBODY;
        const uint64_t due = next_sweep_.load(std::memory_order_relaxed), before = unsigned_now_ns();
        const uint64_t until = due > before ? (due - before) / 1000000u + 1 : 0;
        const bool timed = open_connections.load(std::memory_order_relaxed) != 0 || decrefs_.load();
        const bool more = unread_.load() || handshakes_wait_.load();
        const int timeout = more ? 0 : gathering_.load() ? 1 : waiting ? 2 : timed ? static_cast<int>(until) : 1000;
        const int ready = epoll_wait(epoll_, events, EVENTS, timeout);
        send_deferred();
        for (int i = 0; i < ready; ++i) {
            const uint64_t tag = events[i].data.u64;
            if (tag == WAKE_TAG) {
                uint64_t count;
                if (!stopping_.load(std::memory_order_acquire) && read(wake_, &count, sizeof count) < 0) continue;
            } else if (tag & LISTENER_TAG) {
                accept_some(static_cast<size_t>(tag & ~LISTENER_TAG));
            } else if (Connection *connection = at(tag)) {
                const bool hung_up = events[i].events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR);
                const bool readable = hung_up || events[i].events & EPOLLIN;
                connection->post(hung_up ? EVENT_READABLE | EVENT_HUNG_UP
                                         : readable ? EVENT_READABLE : EVENT_WRITABLE);
                connection->release();
            }
        }
        read_waiting();
        go_on_with_handshake();
        const uint64_t now = unsigned_now_ns();
        read_gathered(now);
        uint64_t swept = next_sweep_.load(std::memory_order_relaxed);
        if (now >= swept && next_sweep_.compare_exchange_strong(swept, now + SWEEP_NS)) sweep(now);
        serve(index);
    }
    loop_of = nullptr;
}

// Takes calls into Python, unless another thread does. A handler that hangs on that thread keeps nobody
// waiting: another one serves in its place, but for the last, which stays with the sockets.
void Server::serve(int index) noexcept {
    while (wants_python()) {
        int serving = serving_.load();
        if (serving != NOBODY && !late(request_since_.load(), STUCK_NS)) return;
        if (config.threads > 1 && away_.load() + 1 >= config.threads) return;
        request_since_.store(unsigned_now_ns());
        if (!serving_.compare_exchange_strong(serving, index)) return;
        away_.fetch_add(1);
        visit_python(index);
        away_.fetch_sub(1);
        int mine = index;  // another thread may have taken this one's place
        in_python_.compare_exchange_strong(mine, NOBODY);
        mine = index;
        serving_.compare_exchange_strong(mine, NOBODY);
        send_deferred();
    }
}

void Server::visit_python(int index) noexcept {
    const uint64_t now = unsigned_now_ns();
    python_since_.store(now);
    request_since_.store(now);
    in_python_.store(index);
    if (watcher_rests_.load()) {
        std::lock_guard<std::mutex> guard(follow_mutex_);
        watch_.notify_one();
    }
    visiting = index;
    decref_bytes_.store(0);
    call_python([this] { serve_python_(owner_); });
    visiting = -1;
}

void Server::leave_watch(int index) noexcept {
    int mine = index;
    if (watching_.compare_exchange_strong(mine, NOBODY)) follow_.notify_one();
}

// Watches the leader and takes its place when it has been in Python for too long. While calls come, that is a
// look every two milliseconds, so that entering Python costs no wake-up; else the watcher rests until the leader
// enters Python, and the watcher alone is woken then.
void Server::follow(int index) noexcept {
    const auto after = [](uint64_t ns) { return static_cast<int64_t>(unsigned_now_ns() + ns); };
    std::unique_lock<std::mutex> lock(follow_mutex_);
    while (!stopping_.load(std::memory_order_acquire)) {
        int leader = leader_.load();
        if (leader == index) {
            leave_watch(index);
            return;
        }
        const uint64_t entered = python_since_.load();
        if (in_python_.load() == leader && (late(request_since_.load(), REQUEST_NS) || late(entered, VISIT_NS))) {
            leader_.compare_exchange_strong(leader, index);
            continue;
        }
        const bool watcher = watching_.load() == NOBODY || watching_.load() == index;
        if (!watcher) {
            follow_.wait_until(lock, after(1000000000));
            continue;
        }
        watching_.store(index);
        if (in_python_.load() != NOBODY || !late(entered, WATCHED_NS)) {
            watch_.wait_until(lock, after(2000000));
            continue;
        }
        watcher_rests_.store(true);
        if (in_python_.load() == NOBODY) watch_.wait_until(lock, after(1000000000));
        watcher_rests_.store(false);
    }
}

}  // namespace ksrv::grpc
