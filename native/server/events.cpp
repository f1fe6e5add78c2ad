// Handles events and timers: connections begin, continue, and end at their deadlines.

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "base/python_call.hpp"
#include "server/server.hpp"

namespace ksrv {

HttpServer::HttpServer(EventLoop *loop, const HttpServerConfig &wanted, Serve serve, void *owner)
    : config(wanted),
      connections(loop, &listeners, &config, &counts),
      answers(&connections, &config, &counts),
      routes(loop, &connections, &answers, &counts, &config.plain_forms),
      loop_(loop),
      serve_python_(serve),
      owner_(owner) {}

HttpServer::~HttpServer() { connections.close_all(); }

bool HttpServer::listen_on(const int *fds, size_t count) noexcept {
    if (!connections.timers.made()) return false;
    for (size_t i = 0; i < count; ++i) {
        const int on = 1;  // inherited by accepted sockets; fails on unix sockets, which do not need it
        setsockopt(fds[i], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    }
    return loop_->add(this, config.connections, fds, count, config.shared, false);
}

void HttpServer::stop() noexcept {
    stopping_.store(true, std::memory_order_release);
    app_queue_.stop();
    answers.stop();
}

NextTurn HttpServer::next_turn() const noexcept {
    return connections.open() != 0 || connections.decrefs.any() ? NextTurn::at_sweep : NextTurn::any;
}

void HttpServer::work_in_python() noexcept {
    call_python([this] { serve_python_(owner_); });
}

// ---- events and deadlines -------------------------------------------------------------------

// Continues a TLS handshake. True if it is finished and the caller still owns the connection.
bool HttpServer::shake_hands(Connection *connection, uint64_t now) noexcept {
    if (!connection->tls && !connection->tls.begin(*tls, connection->fd)) {
        connections.drop(connection);
        return false;
    }
    const Handshake outcome = connection->tls.shake_hands();
    if (outcome == Handshake::waits) {
        connections.arm(connection, now);
        return false;
    }
    if (outcome == Handshake::plain_http) {
        connection->tls.end();
        answers.refuse(connection, ANSWER_NOT_TLS, ServerCounter::tls_refused);
        return false;
    }
    if (outcome == Handshake::failed) {
        counts.count(ServerCounter::tls_refused);
        connection->tls.end();  // after OpenSSL has sent the reason to the client
        answers.linger(connection, now);
        return false;
    }
    counts.count(connection->tls.resumed() ? ServerCounter::tls_resumed : ServerCounter::tls_agreed);
    connection->saw_bytes = true;  // the peer may now keep idle connections
    connection->enter(Phase::idle);
    return true;
}

// Continues with the connection of an event. If another thread owns the connection, mutes it, so that epoll does not
// report the event again. The queue of handshakes owns a connection whose handshake waits for its turn.
void HttpServer::on_event(uint64_t tag, uint32_t, uint64_t now, bool) noexcept {
    Connection *connection = connections.of(tag);
    if (!connection) return;
    if (!connection->claim_for_event()) {
        connections.mute(connection);
    } else if (connection->phase.load(std::memory_order_relaxed) == Phase::handshake) {
        // Use the current tag: `tag` may belong to an earlier client of the slot.
        loop_->queue_handshake(connection->tag);
    } else {
        go_on(connection, now);
    }
}

void HttpServer::on_handshake(uint64_t tag, uint64_t now) noexcept {
    if (Connection *connection = connections.of(tag)) advance(connection, now);
}

// Continues with an owned connection at an event.
void HttpServer::go_on(Connection *connection, uint64_t now) noexcept {
    switch (connection->phase.load(std::memory_order_relaxed)) {
    case Phase::send:
        if (answers.go_on(connection, now)) advance(connection, now);
        return;
    case Phase::linger:
        answers.drain_lingering(connection, now);
        return;
    case Phase::awaiting_memory:  // an event from before this phase
        connections.arm(connection, now);
        return;
    default:
        advance(connection, now);  // recv then reports a reset or a half-closed peer
    }
}

void HttpServer::on_sweep(uint64_t now) noexcept {
    connections.sweep(now, [this, now](Connection *connection) { expire(connection, now); });
}

// The deadline of an owned connection has passed. First makes sure that the client is late and not this server.
void HttpServer::expire(Connection *connection, uint64_t now) noexcept {
    const Phase phase = connection->phase.load(std::memory_order_relaxed);
    if (connection->holds_unseen()) {  // the socket is not writable, or this server is late
        advance(connection, now);
        return;
    }
    if (receives(phase) && !connection->looked_late && look_for_unread(connection) == Unread::some) {
        connection->looked_late = true;  // this server is late, not the client
        advance(connection, now);
        return;
    }
    switch (phase) {
    case Phase::awaiting_memory:
        retry_memory(connection, now);
        return;
    case Phase::body:
        // Bytes below the low-water mark count as well.
        if (connection->low_water > 1 && !connection->body.prereserved) {
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
        answers.refuse(connection, ANSWER_TOO_SLOW, ServerCounter::too_slow);
        return;
    case Phase::proxy_header:
        counts.count(ServerCounter::too_slow);
        refuse_proxied(connection, "the header did not arrive within head_timeout");
        return;
    case Phase::handshake:
        counts.count(ServerCounter::too_slow);
        connections.drop(connection);
        return;
    case Phase::idle:
        end_sending(connection);
        connections.drop(connection);
        return;
    case Phase::send:
        answers.look_at_reader(connection, now);
        return;
    default:
        connections.drop(connection);
    }
}

// ---- beginning of connections ---------------------------------------------------------------

void *HttpServer::take_place() noexcept {
    Connection *connection = connections.take();
    if (!connection && listeners.client_waits() && connections.recycle_idle()) connection = connections.take();
    return connection;
}

void HttpServer::give_back_place(void *place) noexcept {
    connections.give_back_place(static_cast<Connection *>(place));
}

void HttpServer::make_room() noexcept {
    if (!has_room() && listeners.client_waits()) connections.recycle_idle();
}

void HttpServer::accepted(void *place, const Accepted &made, bool serves) noexcept {
    Connection *connection = static_cast<Connection *>(place);
    const uint64_t now = unsigned_now_ns();
    counts.count(ServerCounter::accepted);
    connection->peer = made.peer;
    const uint64_t tag = tag_of(connection->slot, connection->generation.load(std::memory_order_relaxed));
    connection->begin(made.fd, made.listener, tag, now);
    connection->ends_ns = config.end(now, tag);
    connection->requests_left = config.most_requests();
    const Phase first = config.proxy.versions != ProxyVersions::off ? Phase::proxy_header
                        : tls                                       ? Phase::handshake
                                                                    : Phase::idle;
    connection->enter(first, std::memory_order_release);
    // A handshake begins with the client's first bytes, because a silent client must not cost memory.
    if (serves && first == Phase::idle) {
        advance(connection, now);
    } else {
        connections.arm(connection, now);
    }
}

}  // namespace ksrv
