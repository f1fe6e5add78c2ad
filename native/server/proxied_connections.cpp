// Connections that begin with a PROXY protocol header. The client's address in the header replaces the peer's address.
//
// Strategy: no byte after the header may be consumed from the socket, because OpenSSL reads these bytes from the socket
// itself. Therefore the bytes are first peeked. Then the part that belongs to the header is consumed, so that epoll
// reports only further bytes.

#include <errno.h>
#include <sys/socket.h>

#include "server/server.hpp"

namespace ksrv {

namespace {

constexpr char UNTRUSTED[] = "the connection begins with a header, but proxy_allow_ips does not list this address";

}  // namespace

// Continues a connection in Phase::proxy_header. True if the caller owns it, in Phase::idle or Phase::head.
bool HttpServer::take_proxy_header(Connection *connection, uint64_t now) noexcept {
    const bool trusted = config.proxy.trusts(connection->peer);
    if (!connection->reserve(HEAD_BUFFER)) {
        connections.drop(connection);
        return false;
    }
    for (;;) {
        unsigned char *const next = connection->buffer + connection->filled;
        const size_t room = PROXY_HEADER_MOST - connection->filled;
        const ssize_t seen = recv(connection->fd, next, room, MSG_PEEK | MSG_DONTWAIT);
        if (seen < 0 && errno == EINTR) continue;
        if (seen < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            connections.arm(connection, now);
            return false;
        }
        if (seen <= 0) {
            connections.drop(connection);
            return false;
        }
        ProxySource source;
        const size_t filled = connection->filled + static_cast<size_t>(seen);
        const ProxyVerdict verdict = read_proxy_header(connection->buffer, filled, config.proxy.versions, &source);
        if (verdict == ProxyVerdict::malformed) {
            refuse_proxied(connection, trusted ? source.fault : UNTRUSTED);
            return false;
        }
        if (verdict == ProxyVerdict::absent) {
            if (!trusted) return begin_direct(connection, now);  // a client that does not use the proxy
            refuse_proxied(connection, "the header is missing, but proxy_allow_ips lists this address");
            return false;
        }
        const size_t end = verdict == ProxyVerdict::whole ? source.length : filled;
        const ssize_t taken = static_cast<ssize_t>(end - connection->filled);
        if (recv(connection->fd, next, static_cast<size_t>(taken), MSG_DONTWAIT) != taken) {
            connections.drop(connection);
            return false;
        }
        connection->filled = end;
        if (verdict == ProxyVerdict::incomplete) continue;
        if (!trusted) {
            refuse_proxied(connection, UNTRUSTED);
            return false;
        }
        connection->filled = 0;
        if (source.names_client) connection->peer = source.peer;
        return begin_direct(connection, now);
    }
}

// Continues after the header, or without a header. The first bytes of an HTTP message may have been consumed together
// with the header. TLS bytes were not, because no TLS record begins like a header.
bool HttpServer::begin_direct(Connection *connection, uint64_t now) noexcept {
    if (!tls) {
        connection->enter(Phase::idle);
        if (!connection->filled) return true;
        connection->message_ns = connection->stage_ns;
        connection->saw_bytes = true;
        connection->enter(Phase::head);
        return true;
    }
    if (connection->filled) {
        counts.count(ServerCounter::tls_refused);
        connections.drop(connection);
        return false;
    }
    connections.take_from_epoll(connection);  // the queue of handshakes owns it instead
    connection->enter(Phase::handshake, std::memory_order_release);
    connections.arm(connection, now);
    return false;
}

// Closes a connection without an answer, and records the reason for the log.
void HttpServer::refuse_proxied(Connection *connection, const char *fault) noexcept {
    counts.count(ServerCounter::proxy_header);
    refusals.keep({connection->peer, "PROXY protocol", fault}, 0);
    connections.drop(connection);
}

}  // namespace ksrv
