// The bytes of a connection: its socket, and TLS if the listener has it.
//
// All that the server reads and writes on an accepted connection goes through here. Only the owner of the
// connection calls these functions.

#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

#include "http/outgoing.hpp"
#include "tls/tls_session.hpp"

namespace ksrv {

struct Transport {
    int fd = -1;
    TlsSession tls;  // begun with the first bytes of a handshake
    int low_water = 1;  // the socket's SO_RCVLOWAT
};

enum class Sent : uint8_t { all, blocked, broken };

// What waits to be read: `closed` is the end of what the peer sends.
enum class Unread : uint8_t { none, some, closed, broken };

// As recv() on a socket that does not block: the bytes received, 0 at the end, or -1 with errno, which is
// EAGAIN where nothing has come.
ssize_t receive_some(Transport *transport, void *data, size_t room) noexcept;

// Whether a read that got so many bytes into so much room has left nothing behind.
inline bool has_emptied(const Transport *transport, size_t got, size_t room) noexcept {
    return transport->tls ? !transport->tls.unread : got < room;
}

// Looks without reading.
Unread look_for_unread(Transport *transport) noexcept;

// The kernel makes no event for fewer bytes than this; with TLS, whose records hold bytes of its own, it always makes one.
void set_low_water(Transport *transport, int bytes) noexcept;

// Bytes that were sent and that the peer has not acknowledged, as far as can be told.
uint64_t unacknowledged(Transport *transport) noexcept;

// Whether the peer has gone. One that sends nothing more may read on: it is asked by an interim answer, which
// `*probed` says was sent.
bool is_peer_gone(Transport *transport, bool *probed) noexcept;

// What the peer of an answer in pieces does, as far as can be told without sending: `half_closed` sends nothing
// more, and may read on.
enum class Peer : uint8_t { open, half_closed, gone };
Peer look_at_peer(Transport *transport) noexcept;

// Sends as much of an answer as the socket takes now.
Sent send_now(Transport *transport, Outgoing *out) noexcept;

// Sends `100 Continue`, which a socket that is full does without; false when the connection is broken.
bool send_continue(Transport *transport) noexcept;

// Nothing more is sent on a socket; what the peer still sends is only to be thrown away.
void end_sending(Transport *transport) noexcept;

void close_transport(Transport *transport) noexcept;

}  // namespace ksrv
