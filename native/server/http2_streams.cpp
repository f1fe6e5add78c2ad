// HTTP/2 on the addresses of HTTP: its connections are found and given away, and their requests come back, each
// on a stream of its own.
//
// Strategy: whether a connection speaks HTTP/2 shows in its first bytes, or TLS has agreed on it. It goes to
// the server of HTTP/2 then (native/grpc), which owns its socket from there on. A request that is not gRPC's
// comes back with its head read, in a connection's place for one message, whose body and answer are a `ByteStream`'s. So
// routes, bodies, callers, deadlines, budgets, answers and the access log have one meaning over both.

#include <cstring>

#include "server/server.hpp"

namespace ksrv {

// Gives a connection, with what has come of it, to the server of HTTP/2.
void HttpServer::hand_over(Connection *connection) noexcept {
    connections.timers.set(connection->slot, Timers::NONE);
    connections.take_from_epoll(connection);
    AcceptedHttp2 accepted;
    accepted.fd = connection->fd;
    accepted.tls = connection->tls;
    accepted.bytes = connection->buffer;
    accepted.length = connection->filled;
    accepted.peer = connection->peer;
    accepted.peer_length = connection->peer_length;
    accepted.listener = connection->listener;
    if (adopt_http2(http2_owner, accepted)) {
        connection->fd = -1;
        connection->tls = TlsSession{};
    }
    connection->filled = 0;
    connections.drop(connection);
}

// Serves a message of HTTP/2. False where there is no room for it.
bool HttpServer::open_stream(ByteStream *stream, const StreamHead &head, const sockaddr_storage &peer,
                             socklen_t peer_length, uint16_t listener) noexcept {
    if (stopping_.load(std::memory_order_acquire)) return false;
    Connection *connection = connections.take_for_stream();
    if (!connection) return false;
    const uint64_t now = unsigned_now_ns();
    const uint64_t tag = tag_of(connection->slot, connection->generation.load(std::memory_order_relaxed));
    connection->begin(-1, listener, tag, now);
    if (!connection->reserve(head.text.size())) {
        connections.give_back_place(connection, true);
        return false;
    }
    memcpy(connection->buffer, head.text.data(), head.text.size());
    connection->filled = head.text.size();
    connection->head = head.head;
    connection->verdict = head.verdict;
    connection->message_ns = now;
    connection->saw_bytes = true;
    connection->peer = peer;
    connection->peer_length = peer_length;
    connection->byte_stream = stream;
    // Has an I/O thread look at the stream's connection. Called by any thread, even while the stream is being armed.
    stream->ready = [](void *owner, uint64_t tag) {
        HttpServer *server = static_cast<HttpServer *>(owner);
        if (server->woken_.push(tag)) server->loop_->wake();
    };
    // Its client has reset the stream: a request that waits for its model is cancelled. Called by any thread.
    stream->cut = [](void *owner, uint64_t tag) {
        HttpConnections &connections = static_cast<HttpServer *>(owner)->connections;
        if (Connection *connection = connections.of(tag)) connections.disconnects.look(connection);
    };
    stream->owner = this;
    stream->tag = tag;
    connection->enter(Phase::head, std::memory_order_release);
    connections.arm(connection, now);
    return true;
}

// A thread that has lost the lead may still be here while the one that has taken it comes: each has a tag of its own.
void HttpServer::on_turn(uint64_t now) noexcept {
    uint64_t tag;
    for (size_t left = woken_.count(); left && woken_.pop(&tag); --left) {  // those that come meanwhile have the next turn
        Connection *connection = connections.of(tag);
        if (connection && connection->claim_for_event()) go_on(connection, now);
    }
}

}  // namespace ksrv
