// The gRPC server as a protocol of the event loop: accepts connections, passes on events, and keeps the limits on
// calls.

#include "grpc/server.hpp"

#include <sys/epoll.h>
#include <unistd.h>

#include <new>

#include "base/python_call.hpp"
#include "server/fast_path.hpp"

namespace ksrv::grpc {

namespace {

// A measure for `OpenConnections::with_most`: a count of the connection's calls.
auto counted(std::atomic<uint32_t> CallCounts::*count) noexcept {
    return [count](const Connection &its) { return (its.counts().*count).load(std::memory_order_relaxed); };
}

}  // namespace

Server::Server(EventLoop *loop, const ServerConfig &wanted, MemoryBudget *bytes, ServeCalls serve, void *owner)
    : config(wanted), budget(bytes), timers(wanted.connections), loop_(loop), serve_python_(serve), owner_(owner) {}

Server::~Server() {
    close_all();
    // These lists hold references to connections, and no further turn of the event loop will empty them.
    while (Connection *connection = deferred_.pop()) connection->release();
    while (Connection *connection = unread_.pop()) connection->release();
}

void Server::add_method(const Method &method) { methods_[method.path] = method; }

const Method *Server::method(std::string_view path) const noexcept {
    const auto found = methods_.find(path);
    return found == methods_.end() ? nullptr : &found->second;
}

bool Server::listen_on(const int *fds, size_t count) noexcept {
    if (!timers.made() || !connections.reserve(config.connections)) return false;
    return loop_->add(this, config.connections, fds, count, true, true);
}

NextTurn Server::next_turn() const noexcept {
    if (!unread_.empty()) return NextTurn::at_once;
    return connections.count() || decrefs.any() ? NextTurn::at_sweep : NextTurn::any;
}

// ---- connections ----------------------------------------------------------------------------

void *Server::take_place() noexcept {
    return has_room() || (listeners.client_waits() && recycle_idle()) ? this : nullptr;
}

void Server::make_room() noexcept {
    if (!has_room() && listeners.client_waits()) recycle_idle();
}

// Closes the connection that has been without a call for longest, so that idle connections do not lock out clients.
// False if all are in use.
bool Server::recycle_idle() noexcept {
    // `idle_since_ns` of the last connection that was asked to close. If it did not, because another thread owns it or
    // it has a new call, the next connection after it is tried.
    uint64_t tried = 0;
    for (int i = 0; i < RECYCLE_TRIES && !has_room(); ++i) {
        Connection *oldest = connections.with_most([tried](const Connection &connection) {
            const uint64_t since = connection.counts().idle_since_ns.load(std::memory_order_relaxed);
            return connection.is_idle() && since > tried ? UINT64_MAX - since : 0;
        });
        if (!oldest) return false;
        tried = oldest->counts().idle_since_ns.load(std::memory_order_relaxed);
        oldest->post(EVENT_RECYCLE);
        oldest->release();
    }
    return has_room();
}

void Server::accepted(void *, const Accepted &made, bool) noexcept {
    const uint64_t now = unsigned_now_ns();
    Connection *connection = connections.add([this, now, fd = made.fd](uint32_t slot, uint32_t generation) {
        return new (std::nothrow) Connection(this, fd, slot, generation, now);
    });
    if (!connection) {
        close(made.fd);
        return;
    }
    timers.set(connection->slot, now + config.head_ns);
    connection->address = made.peer;
    epoll_event event{};
    event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
    event.data.u64 = tag_of(connection->slot, connection->generation);
    const bool watched = epoll_ctl(epoll(), EPOLL_CTL_ADD, made.fd, &event) == 0;
    // If a drain began before the connection was listed, the connection was not notified.
    connection->begin(watched, draining.load() ? EVENT_READABLE | EVENT_GOODBYE : EVENT_READABLE);
}

void Server::forget(Connection *connection) noexcept {
    timers.set(connection->slot, Timers::NONE);
    connections.remove(connection);
    listeners.note_closed(unsigned_now_ns());
}

void Server::end_unfinished() noexcept {
    Connection *largest = connections.with_most(counted(&CallCounts::unfinished));
    if (!largest) return;
    largest->post(EVENT_MAKE_ROOM);
    largest->release();
}

// If too many answers are undelivered, ends the oldest of the connection that has most. If another thread owns that
// connection, the count does not fall at once; the loop then stops, and that thread ends them.
void Server::end_undelivered() noexcept {
    uint32_t left = undelivered.load(std::memory_order_relaxed), before = 0;
    while (left > UNDELIVERED_SHARE * config.calls && left != before) {
        Connection *largest = connections.with_most(counted(&CallCounts::undelivered));
        if (!largest) return;
        largest->post(EVENT_END_UNDELIVERED);
        largest->release();
        before = left;
        left = undelivered.load(std::memory_order_relaxed);
    }
}

void Server::drain() noexcept {
    draining.store(true);
    post_all(EVENT_GOODBYE);
}

void Server::close_all() noexcept { post_all(EVENT_CLOSE); }

void Server::post_all(uint32_t events) noexcept {
    connections.each([events](Connection *connection) { connection->post(events); });
}

void Server::on_event(uint64_t tag, uint32_t events, uint64_t, bool is_late) noexcept {
    Connection *connection = at(tag);
    if (!connection) return;
    const bool hung_up = events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR);
    const bool readable = hung_up || events & EPOLLIN;
    const uint32_t seen = hung_up ? EVENT_READABLE | EVENT_HUNG_UP : readable ? EVENT_READABLE : EVENT_WRITABLE;
    if (is_late) {  // this turn is over. Store the event, because edge-triggered epoll does not report it again.
        connection->note(seen);
        read_again(connection);
    } else {
        connection->post(seen);
    }
    connection->release();
}

// Reads at least one connection that was put off, and each at most once.
void Server::on_turn(uint64_t, TurnShare share) noexcept {
    for (uint32_t left = unread_.count(); left > 0; --left) {
        Connection *connection = unread_.pop();
        if (!connection) break;
        connection->unread.store(false, std::memory_order_release);
        connection->post(EVENT_READABLE);
        connection->release();
        if (left > 1 && share.is_over(unsigned_now_ns())) break;
    }
}

void Server::on_sweep(uint64_t now) noexcept {
    timers.sweep(config.connections, now, [this](uint32_t slot) {
        Connection *connection = connections.at(slot);
        if (!connection) return;
        connection->post(EVENT_TICK);
        connection->release();
    });
    end_undelivered();
    decrefs.sweep();
}

void Server::read_again(Connection *connection) noexcept {
    if (connection->unread.exchange(true, std::memory_order_acq_rel)) return;
    connection->retain();
    unread_.push(connection);
    loop_->wake();
}

void Server::queue_handshake(const Connection &connection) noexcept {
    loop_->queue_handshake(tag_of(connection.slot, connection.generation));
}

void Server::on_handshake(uint64_t tag, uint64_t) noexcept {
    Connection *connection = at(tag);
    if (!connection) return;
    connection->post(EVENT_HANDSHAKE);
    connection->release();
}

void Server::work_in_python() noexcept {
    call_python([this] { serve_python_(owner_); });
}

// ---- calls ----------------------------------------------------------------------------------

void Server::run_later(Call *call, int reason) noexcept {
    if (call->run.fetch_or(reason, std::memory_order_acq_rel) != 0) return;  // it is in the queue already
    call->retain();
    to_run_.push(call);
    loop_->wake();
}

Call *Server::next_to_run(int *reasons) noexcept {
    Call *call = !to_run_.empty() && loop_->begin_request() ? to_run_.pop() : nullptr;
    if (call) *reasons = call->run.exchange(0, std::memory_order_acq_rel);
    return call;
}

size_t Server::take_fast_calls(Call *first, Call **out, size_t room) noexcept {
    const ModelSignature *signature = first->fast->signature;
    const auto joins = [signature](Call *next) {
        int only_ready = RUN_READY;  // a call with a further reason, such as RUN_ENDED, stays in the queue
        return next->fast && next->fast->signature == signature &&
               next->run.compare_exchange_strong(only_ready, 0, std::memory_order_acq_rel);
    };
    size_t count = 0;
    while (count < room && (out[count] = to_run_.pop_if(joins))) ++count;
    return count;
}

void Server::send_later(Connection *connection) noexcept {
    if (!loop_->gathers()) {
        connection->post(0);  // no event: only has its owner send what waits
    } else if (!connection->deferred.exchange(true, std::memory_order_acq_rel)) {
        connection->retain();
        deferred_.push(connection);
    }
}

void Server::send_gathered() noexcept {
    while (Connection *connection = deferred_.pop()) {
        connection->deferred.store(false, std::memory_order_release);
        connection->post(0);
        connection->release();
    }
}

}  // namespace ksrv::grpc
