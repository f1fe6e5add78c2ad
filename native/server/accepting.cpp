// How connections begin, and room where there are too many.

#include <sys/socket.h>

#include "server/server.hpp"

namespace ksrv {

void *HttpServer::take_place() noexcept {
    Connection *connection = connections.take();
    if (!connection && listeners.client_waits() && recycle_idle()) connection = connections.take();
    return connection;
}

void HttpServer::give_back_place(void *place) noexcept {
    Connection *connection = static_cast<Connection *>(place);
    timers.set(connection->slot, Timers::NONE);
    connections.give_back(connection);
}

void HttpServer::make_room() noexcept {
    if (!has_room() && listeners.client_waits()) recycle_idle();
}

void HttpServer::accepted(void *place, const Accepted &made, bool serves) noexcept {
    Connection *connection = static_cast<Connection *>(place);
    const uint64_t now = unsigned_now_ns();
    count(SERVER_ACCEPTED);
    connection->peer = made.peer;
    connection->peer_length = made.peer_length;
    connection->begin(made.fd, made.listener, now);
    connection->ends_ns = config.end.at(now, tag_of(connection));
    connection->requests_left = config.end.most_requests();
    if (config.proxy.versions != ProxyVersions::off) {
        connection->enter(Phase::proxy_header, std::memory_order_release);
        arm_for_phase(connection, now);
        return;
    }
    if (tls) {  // begins with the client's first bytes: a silent one costs no memory
        connection->enter(Phase::handshake, std::memory_order_release);
        arm_for_phase(connection, now);
        return;
    }
    connection->enter(Phase::idle, std::memory_order_release);
    if (serves) {
        advance(connection, now);
    } else {
        arm_for_phase(connection, now);
    }
}

// Closes the connection that has been idle for longest between two messages, so that connections kept open for nothing keep nobody
// out. One whose next message is on its way is left alone, and one that its peer has closed makes room first. Called while the
// listeners are in use.
bool HttpServer::recycle_idle() noexcept {
    uint64_t tried = 0;
    for (int i = 0; i < RECYCLE_TRIES; ++i) {
        Connection *oldest = nullptr;
        uint64_t soonest = Timers::NONE;
        for (uint32_t slot = 0; slot < connections.used(); ++slot) {
            Connection *connection = connections.at(slot);
            const uint64_t when = timers.at(slot);
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

}  // namespace ksrv
