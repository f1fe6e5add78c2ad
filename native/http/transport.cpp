// The system calls on a connection's socket, or OpenSSL in their place.

#include "http/transport.hpp"

#include <errno.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace ksrv {

namespace {

constexpr char INTERIM[] = "HTTP/1.1 100 Continue\r\n\r\n";
constexpr size_t INTERIM_LENGTH = sizeof INTERIM - 1;
constexpr size_t RECORD = 16384;  // bytes of the largest TLS record

bool would_block(int error) noexcept { return error == EAGAIN || error == EWOULDBLOCK; }

Sent send_interim(TlsSession *tls) noexcept {
    const ssize_t sent = tls->send(INTERIM, INTERIM_LENGTH);
    tls->interim_waits = sent < 0 && would_block(errno);
    return sent >= 0 ? Sent::all : tls->interim_waits ? Sent::blocked : Sent::broken;
}

}  // namespace

ssize_t receive_some(Transport *transport, void *data, size_t room) noexcept {
    if (transport->tls) return transport->tls.receive(data, room);
    ssize_t got;
    do {
        got = recv(transport->fd, data, room, MSG_DONTWAIT);
    } while (got < 0 && errno == EINTR);
    return got;
}

Unread look_for_unread(Transport *transport) noexcept {
    if (transport->tls.unread) return Unread::some;
    char next;
    const ssize_t got = recv(transport->fd, &next, 1, MSG_PEEK | MSG_DONTWAIT);
    if (got > 0) return Unread::some;
    if (got == 0) return Unread::closed;
    return would_block(errno) ? Unread::none : Unread::broken;
}

void set_low_water(Transport *transport, int bytes) noexcept {
    // A record is longer than its contents. But the library may already hold up to READ_BUFFER of the missing bytes.
    if (transport->tls) bytes = std::max(1, bytes - TlsSession::READ_BUFFER);
    if (transport->low_water == bytes) return;
    if (setsockopt(transport->fd, SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof bytes) == 0) transport->low_water = bytes;
}

uint64_t unacknowledged(Transport *transport) noexcept {
    int bytes = 0;
    return ioctl(transport->fd, SIOCOUTQ, &bytes) == 0 && bytes > 0 ? static_cast<uint64_t>(bytes) : 0;
}

Peer look_at_peer(Transport *transport) noexcept {
    pollfd asked{transport->fd, POLLRDHUP, 0};
    if (poll(&asked, 1, 0) <= 0) return Peer::open;
    if (asked.revents & (POLLERR | POLLHUP | POLLNVAL)) return Peer::gone;
    return asked.revents & POLLRDHUP ? Peer::half_closed : Peer::open;
}

void await_writable(Transport *transport, int ms) noexcept {
    pollfd waits{transport->fd, POLLOUT, 0};
    poll(&waits, 1, ms);
}

bool is_peer_gone(Transport *transport, bool *probed) noexcept {
    const Peer peer = look_at_peer(transport);
    if (peer != Peer::half_closed || *probed) return peer == Peer::gone;
    *probed = true;
    return !send_continue(transport);
}

bool send_continue(Transport *transport) noexcept {
    if (transport->tls) return send_interim(&transport->tls) != Sent::broken;
    ssize_t sent;
    do {
        sent = send(transport->fd, INTERIM, INTERIM_LENGTH, MSG_NOSIGNAL | MSG_DONTWAIT);
    } while (sent < 0 && errno == EINTR);
    return sent == static_cast<ssize_t>(INTERIM_LENGTH) || (sent < 0 && would_block(errno));
}

ssize_t send_some(Transport *transport, const iovec *parts, int count) noexcept {
    TlsSession &tls = transport->tls;
    if (!tls) {
        msghdr message{};
        message.msg_iov = const_cast<iovec *>(parts);
        message.msg_iovlen = static_cast<size_t>(count);
        return sendmsg(transport->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    if (count == 1 || parts[0].iov_len >= RECORD) return tls.send(parts[0].iov_base, parts[0].iov_len);
    unsigned char gathered[RECORD];
    size_t length = 0;
    for (int i = 0; i < count && length < RECORD; ++i) {
        const size_t taken = std::min(parts[i].iov_len, RECORD - length);
        memcpy(gathered + length, parts[i].iov_base, taken);
        length += taken;
    }
    return tls.send(gathered, length);
}

Sent send_now(Transport *transport, Outgoing *out) noexcept {
    if (TlsSession *tls = &transport->tls; *tls) {
        // OpenSSL must get the unsent bytes of `100 Continue` again before anything else (SSL_write(3)).
        const Sent before = tls->interim_waits ? send_interim(tls) : Sent::all;
        if (before != Sent::all) return before;
    }
    while (out->at < out->count) {
        const ssize_t taken = send_some(transport, out->parts + out->at, std::min(out->count - out->at, ANSWER_PARTS));
        if (taken < 0) {
            if (errno == EINTR) continue;
            return would_block(errno) || errno == ENOBUFS ? Sent::blocked : Sent::broken;
        }
        out->advance(static_cast<size_t>(taken));
    }
    return Sent::all;
}

void end_sending(Transport *transport) noexcept {
    if (transport->tls) {
        transport->tls.say_farewell();
        transport->tls.end();
    }
    shutdown(transport->fd, SHUT_WR);
}

void close_transport(Transport *transport) noexcept {
    transport->tls.end();
    if (transport->fd >= 0) close(transport->fd);
    transport->fd = -1;
}

}  // namespace ksrv
