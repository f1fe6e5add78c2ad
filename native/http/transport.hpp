// The way of a connection's bytes: its socket.
//
// All that the server reads and writes on an accepted connection goes through here. Only who owns the
// connection calls these functions.

#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

#include "http/outgoing.hpp"

namespace ksrv {

struct Transport {
    int fd = -1;
};

enum class Sent : uint8_t { all, blocked, broken };

// What waits to be read: `closed` is the end of what the peer sends.
enum class Unread : uint8_t { none, some, closed, broken };

// As recv() on a socket that does not block: the bytes received, 0 at the end, or -1 with errno, which is
// EAGAIN where nothing has come.
ssize_t receive_some(Transport *transport, void *data, size_t room) noexcept;

// Looks without reading.
Unread look_for_unread(Transport *transport) noexcept;

// Sends as much of a message as the socket takes now.
Sent send_now(Transport *transport, Outgoing *out) noexcept;

// Sends `100 Continue`, which a socket that is full does without; false when the connection is broken.
bool send_continue(Transport *transport) noexcept;

// Nothing more is sent; the peer may still send.
void end_sending(Transport *transport) noexcept;

void close_transport(Transport *transport) noexcept;

}  // namespace ksrv
