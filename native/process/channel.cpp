#include "process/channel.hpp"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstring>

#include "base/clock.hpp"

namespace ksrv {

Wait wait_readable(int fd, std::int64_t deadline_ns) noexcept {
    for (;;) {
        std::int64_t left = deadline_ns - now_ns();
        if (left < 0) left = 0;
        const timespec timeout = {static_cast<time_t>(left / 1'000'000'000),
                                  static_cast<long>(left % 1'000'000'000)};
        pollfd entry = {fd, POLLIN, 0};
        const int ready = ppoll(&entry, 1, deadline_ns == NEVER ? nullptr : &timeout, nullptr);
        if (ready > 0) return CHANNEL_READY;
        if (ready < 0) return errno == EINTR ? CHANNEL_INTERRUPTED : CHANNEL_FAILED;
        if (left == 0) return CHANNEL_PASSED;
    }
}

ssize_t send_message(int fd, const void *data, std::size_t length, const int *descriptors,
                     int count, bool wait) noexcept {
    iovec part = {const_cast<void *>(data), length};
    alignas(cmsghdr) unsigned char control[CMSG_SPACE(MESSAGE_DESCRIPTORS * sizeof(int))];
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (count > 0) {
        message.msg_control = control;
        message.msg_controllen = CMSG_SPACE(count * sizeof(int));
        std::memset(control, 0, message.msg_controllen);
        cmsghdr *rights = CMSG_FIRSTHDR(&message);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN(count * sizeof(int));
        std::memcpy(CMSG_DATA(rights), descriptors, count * sizeof(int));
    }
    return sendmsg(fd, &message, MSG_NOSIGNAL | (wait ? 0 : MSG_DONTWAIT));
}

ssize_t receive_message(int fd, void *data, std::size_t room, int *descriptors, int *count,
                        int *truncated, bool wait) noexcept {
    iovec part = {data, room};
    alignas(cmsghdr) unsigned char control[CMSG_SPACE(MESSAGE_DESCRIPTORS * sizeof(int))];
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    *count = 0;
    *truncated = 0;
    const ssize_t length = recvmsg(fd, &message, MSG_CMSG_CLOEXEC | (wait ? 0 : MSG_DONTWAIT));
    if (length < 0) return length;
    for (cmsghdr *entry = CMSG_FIRSTHDR(&message); entry != nullptr;
         entry = CMSG_NXTHDR(&message, entry)) {
        if (entry->cmsg_level != SOL_SOCKET || entry->cmsg_type != SCM_RIGHTS) continue;
        const std::size_t bytes = entry->cmsg_len - CMSG_LEN(0);
        for (std::size_t at = 0; at + sizeof(int) <= bytes; at += sizeof(int)) {
            int descriptor;
            std::memcpy(&descriptor, CMSG_DATA(entry) + at, sizeof(int));
            if (*count < MESSAGE_DESCRIPTORS)
                descriptors[(*count)++] = descriptor;
            else
                close(descriptor);
        }
    }
    *truncated = (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0 ? 1 : 0;
    return length;
}

}  // namespace ksrv
