// Moves bytes between the socket, or TLS, and the HTTP/2 session.

#include "grpc/session_socket.hpp"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <new>

#include "base/per_thread.hpp"
#include "grpc/connection.hpp"
#include "grpc/server.hpp"

namespace ksrv::grpc {

namespace {

// Bytes of one read. They are few, because they may be thousands of frames, which are all handled in one turn.
constexpr size_t READ_BYTES = 64u << 10;
constexpr size_t FULL_BYTES = 16384;        // a read of this size has probably not emptied the socket
constexpr uint64_t TURN_NS = 100'000;       // after reading for this time, it is the turn of other connections
constexpr size_t SENT_AHEAD = 1u << 20;     // answers are made ahead of the socket up to this size,
constexpr size_t COPIED_AHEAD = 64u << 10;  // and small frames, which are copied, up to this size
constexpr int DISCARDS = 4;                 // reads per turn while bytes are discarded

struct ReadBuffer {
    unsigned char bytes[READ_BYTES];
};

// The calling thread's buffer; null if memory is short.
unsigned char *read_buffer() noexcept {
    static PerThread<ReadBuffer> buffers;
    ReadBuffer *const buffer = buffers.get();
    return buffer ? buffer->bytes : nullptr;
}

bool would_block() noexcept { return errno == EAGAIN || errno == EWOULDBLOCK; }

}  // namespace

SessionSocket::SessionSocket(Connection *connection, Streams *streams, int fd) noexcept
    : connection_(*connection), server_(*connection->server()), streams_(*streams) {
    transport_.fd = fd;
}

void SessionSocket::open() noexcept {
    const int on = 1;
    setsockopt(transport_.fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

bool SessionSocket::is_agreed() const noexcept { return !server_.tls || transport_.tls.agreed; }

bool SessionSocket::may_read() const noexcept { return readable_ && streams_.may_read(); }

Handshake SessionSocket::shake_hands(bool may_run) noexcept {
    TlsSession &tls = transport_.tls;
    if (may_run) handshake_queued_ = false;
    if (!readable_) return Handshake::waits;
    if (!may_run) {
        if (!std::exchange(handshake_queued_, true)) server_.queue_handshake(connection_);
        return Handshake::waits;
    }
    if (!tls && !tls.begin(*server_.tls, transport_.fd)) return Handshake::failed;
    const Handshake reached = tls.shake_hands();
    return reached == Handshake::plain_http ? Handshake::failed : reached;
}

// ---- receiving ------------------------------------------------------------------------------

bool SessionSocket::read() noexcept {
    const uint64_t turn_ends_ns = connection_.now() + TURN_NS;
    for (bool more = true; more;) {
        if (!may_read()) return true;
        if (!read_once(&more)) {
            readable_ = false;
            return false;
        }
        if (more && unsigned_now_ns() >= turn_ends_ns) return true;
    }
    readable_ = false;
    return true;
}

// Reads once; bytes of a large message go directly into its block. False if the connection has ended.
bool SessionSocket::read_once(bool *more) noexcept {
    unsigned char *buffer = read_buffer();
    if (!buffer) return false;
    size_t direct = 0;
    unsigned char *const place = streams_.place_of_data(&direct);
    iovec parts[2];
    int count = 0;
    if (place) parts[count++] = {place, direct};
    parts[count++] = {buffer, READ_BYTES};
    TlsSession &tls = transport_.tls;
    const ssize_t got =
        tls ? tls.receive(parts[0].iov_base, parts[0].iov_len) : readv(transport_.fd, parts, count);
    if (got < 0 && errno == EINTR) return true;
    if (got < 0 && would_block()) {
        *more = tls.unread;  // under TLS, EAGAIN may only mean that the turn is over
        return true;
    }
    if (got <= 0) {
        if (tls.flooded) server_.count(ServerCounter::flood);
        out.clear();
        ended_ = true;
        return false;
    }
    const size_t whole = static_cast<size_t>(got), first = place ? std::min(direct, whole) : 0;
    streams_.note_received();
    // A short read has emptied the socket, and an event will report more bytes. But the event of the end may have
    // arrived with these bytes. Under TLS a short read may be the rest of a record, or come from the library's buffer.
    *more = hung_up_ || whole >= FULL_BYTES || (tls && (tls.unread || tls.socket_unread || whole >= FULL_BYTES / 2));
    const bool goes_on = (!first || streams_.session.receive(place, first, connection_.now())) &&
                         (whole == first || take_bytes(buffer, whole - first));
    if (!goes_on && streams_.session.flooded()) server_.count(ServerCounter::flood);
    return goes_on;
}

// Passes bytes to the session. False if the session has ended.
bool SessionSocket::take_bytes(const unsigned char *data, size_t length) noexcept {
    return (may_send_ || find_preface(data, length)) && streams_.session.receive(data, length, connection_.now());
}

// Compares the first bytes with HTTP/2's preface (RFC 9113 3.4). If they differ, the client probably speaks HTTP/1.1,
// so it gets an HTTP/1.1 error, and the result is false. No frame is sent before the preface has arrived, because an
// HTTP/1.1 client would take it for an answer.
bool SessionSocket::find_preface(const unsigned char *data, size_t length) noexcept {
    const size_t some = std::min(length, HTTP2_PREFACE_BYTES - preface_bytes_);
    if (memcmp(data, HTTP2_PREFACE + preface_bytes_, some) == 0) {
        preface_bytes_ += some;
        may_send_ = preface_bytes_ == HTTP2_PREFACE_BYTES;
        return true;
    }
    const std::string &body = server_.misdirected_body;
    char head[160];
    const int head_bytes = snprintf(head, sizeof head,
                                    "HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\n"
                                    "Connection: close\r\nContent-Length: %zu\r\n\r\n",
                                    body.size());
    try {
        out.copy(head, static_cast<size_t>(head_bytes));
        out.copy(body.data(), body.size());
    } catch (const std::bad_alloc &) {
        // The connection is closed without an answer.
    }
    return false;
}

// ---- sending --------------------------------------------------------------------------------

bool SessionSocket::flush() noexcept {
    for (;;) {
        if (may_send_ && !streams_.session.produce(SENT_AHEAD, COPIED_AHEAD)) return false;
        if (out.empty()) {
            blocked_ns_ = 0;
            break;
        }
        iovec parts[http2::OutgoingBytes::PARTS];
        const ssize_t sent = send_some(&transport_, parts, out.parts(parts));
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0 && would_block()) {
            if (!blocked_ns_) {
                blocked_ns_ = connection_.now();
                blocked_sent_ = sent_bytes_;
                connection_.look_by(connection_.now() + server_.config.grace_ns);
            }
            break;
        }
        if (sent < 0) return false;
        out.drop_sent(static_cast<size_t>(sent));
        sent_bytes_ += static_cast<uint64_t>(sent);
    }
    count_copied();
    return true;
}

bool SessionSocket::is_too_slow() noexcept {
    const uint64_t now = connection_.now();
    if (!blocked_ns_ || now - blocked_ns_ < server_.config.grace_ns) return false;
    if (!server_.config.keeps_up(sent_bytes_ - blocked_sent_, now - blocked_ns_, 0)) return true;
    blocked_ns_ = now;
    blocked_sent_ = sent_bytes_;
    return false;
}

// Counts small frames that wait for the peer in the budget. Frames that the socket takes at once are never counted.
void SessionSocket::count_copied() noexcept {
    const size_t copied = out.copied();
    if (copied > counted_copied_) server_.budget->take(copied - counted_copied_);
    if (copied < counted_copied_) server_.budget->give_back(counted_copied_ - copied);
    counted_copied_ = copied;
}

// ---- the end --------------------------------------------------------------------------------

bool SessionSocket::end_sending() noexcept {
    if (hung_up_ || ended_) return false;
    ksrv::end_sending(&transport_);
    return true;
}

bool SessionSocket::discard() noexcept {
    unsigned char *buffer = read_buffer();
    for (int reads = 0; buffer && reads < DISCARDS; ++reads) {
        // MSG_TRUNC: TCP discards the bytes without copying them.
        const ssize_t got = recv(transport_.fd, buffer, READ_BYTES, MSG_DONTWAIT | MSG_TRUNC);
        if (got < 0 && (would_block() || errno == EINTR)) return true;
        if (got <= 0) return false;
    }
    server_.read_again(&connection_);
    return true;
}

void SessionSocket::close() noexcept {
    if (!transport_.tls.agreed) transport_.tls.end();  // without a farewell
    ksrv::end_sending(&transport_);
    out.clear();
    count_copied();
    close_transport(&transport_);
}

}  // namespace ksrv::grpc
