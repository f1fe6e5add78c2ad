// Sending and receiving one message with descriptors, and waiting for one until a deadline.
//
// Nothing here throws, knows Python, or interprets a message.

#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace ksrv {

// Fits into the default send buffer of a Unix socket on Linux.
inline constexpr int MESSAGE_BYTES = 160 * 1024;
// The kernel's own bound is 253.
inline constexpr int MESSAGE_DESCRIPTORS = 128;

enum Wait : int { CHANNEL_READY = 0, CHANNEL_PASSED, CHANNEL_INTERRUPTED, CHANNEL_FAILED };

// Waits until something can be read, or `deadline_ns` of the monotonic clock has passed; NEVER does not.
Wait wait_readable(int fd, std::int64_t deadline_ns) noexcept;

// As sendmsg: the bytes sent, or -1 and errno.
ssize_t send_message(int fd, const void *data, std::size_t length, const int *descriptors,
                     int count, bool wait) noexcept;

// As recvmsg: the bytes received (0 at the end), or -1 and errno. `descriptors` has room for
// MESSAGE_DESCRIPTORS; received descriptors are the caller's, also after a failure.
ssize_t receive_message(int fd, void *data, std::size_t room, int *descriptors, int *count,
                        int *truncated, bool wait) noexcept;

}  // namespace ksrv
