#include "http/transport.hpp"

#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

namespace ksrv {

ssize_t receive_some(Transport *transport, void *data, size_t room) noexcept {
    ssize_t got;
    do {
        got = recv(transport->fd, data, room, MSG_DONTWAIT);
    } while (got < 0 && errno == EINTR);
    return got;
}

Unread look_for_unread(Transport *transport) noexcept {
    char next;
    const ssize_t got = recv(transport->fd, &next, 1, MSG_PEEK | MSG_DONTWAIT);
    if (got > 0) return Unread::some;
    if (got == 0) return Unread::closed;
    return errno == EAGAIN || errno == EWOULDBLOCK ? Unread::none : Unread::broken;
}

bool send_continue(Transport *transport) noexcept {
    static constexpr char interim[] = "HTTP/1.1 100 Continue\r\n\r\n";
    static constexpr ssize_t length = sizeof interim - 1;
    ssize_t sent;
    do {
        sent = send(transport->fd, interim, length, MSG_NOSIGNAL | MSG_DONTWAIT);
    } while (sent < 0 && errno == EINTR);
    return sent == length || (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK));
}

Sent send_now(Transport *transport, Outgoing *out) noexcept {
    while (out->at < out->count) {
        msghdr message{};
        message.msg_iov = out->parts + out->at;
        const int left = out->count - out->at;
        message.msg_iovlen = static_cast<size_t>(left < ANSWER_PARTS ? left : ANSWER_PARTS);
        const ssize_t taken = sendmsg(transport->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (taken < 0) {
            if (errno == EINTR) continue;
            if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS) return Sent::blocked;
            return Sent::broken;
        }
        out->advance(static_cast<size_t>(taken));
    }
    return Sent::all;
}

void end_sending(Transport *transport) noexcept { shutdown(transport->fd, SHUT_WR); }

void close_transport(Transport *transport) noexcept {
    if (transport->fd >= 0) close(transport->fd);
    transport->fd = -1;
}

}  // namespace ksrv
