#include "http/outgoing.hpp"

#include <errno.h>
#include <sys/socket.h>

namespace ksrv {

bool send_continue(int fd) noexcept {
    static constexpr char interim[] = "HTTP/1.1 100 Continue\r\n\r\n";
    static constexpr ssize_t length = sizeof interim - 1;
    ssize_t sent;
    do {
        sent = send(fd, interim, length, MSG_NOSIGNAL | MSG_DONTWAIT);
    } while (sent < 0 && errno == EINTR);
    return sent == length || (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK));
}

Sent send_now(int fd, Outgoing *out) noexcept {
    while (out->at < out->count) {
        msghdr message{};
        message.msg_iov = out->parts + out->at;
        const int left = out->count - out->at;
        message.msg_iovlen = static_cast<size_t>(left < ANSWER_PARTS ? left : ANSWER_PARTS);
        const ssize_t taken = sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (taken < 0) {
            if (errno == EINTR) continue;
            if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS) return Sent::blocked;
            return Sent::broken;
        }
        size_t rest = static_cast<size_t>(taken);
        out->sent += rest;
        while (rest > 0) {
            iovec *part = out->parts + out->at;
            const size_t step = rest < part->iov_len ? rest : part->iov_len;
            part->iov_base = static_cast<char *>(part->iov_base) + step;
            part->iov_len -= step;
            rest -= step;
            if (part->iov_len == 0) ++out->at;
        }
    }
    return Sent::all;
}

}  // namespace ksrv
