// Sends and receives single messages with descriptors, and waits for a message until a deadline.
//
// Nothing here throws, uses Python, or interprets a message.

#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace ksrv {

// Fits the default send buffer of a Unix socket on Linux.
inline constexpr int MESSAGE_BYTES = 160 * 1024;
// The kernel's limit is 253 (SCM_MAX_FD).
inline constexpr int MESSAGE_DESCRIPTORS = 128;

enum Wait : int { CHANNEL_READY = 0, CHANNEL_PASSED, CHANNEL_INTERRUPTED, CHANNEL_FAILED };

// Waits until data can be read, or the monotonic clock reaches `deadline_ns`. NEVER waits without a limit.
Wait wait_readable(int fd, std::int64_t deadline_ns) noexcept;

// As sendmsg: returns the bytes sent, or -1 and errno.
ssize_t send_message(int fd, const void *data, std::size_t length, const int *descriptors,
                     int count, bool wait) noexcept;

// As recvmsg: returns the bytes received (0 at the end), or -1 and errno. `descriptors` must have room for
// MESSAGE_DESCRIPTORS. The caller owns received descriptors, also after a failure.
ssize_t receive_message(int fd, void *data, std::size_t room, int *descriptors, int *count,
                        int *truncated, bool wait) noexcept;

}  // namespace ksrv
