// Reads and writes the bytes of a connection: through its socket, and TLS if the listener has it.
//
// Everything that the server reads and writes on an accepted connection passes through here. Called only by the owner
// of the connection.

#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

#include "http/outgoing.hpp"
#include "tls/tls_session.hpp"

namespace ksrv {

struct Transport {
    int fd = -1;
    TlsSession tls;  // starts with the first bytes of a handshake
    int low_water = 1;  // the socket's SO_RCVLOWAT
};

enum class Sent : uint8_t { all, blocked, broken };

// Whether data is available to read. `closed`: the peer sends nothing more.
enum class Unread : uint8_t { none, some, closed, broken };

// As recv() on a non-blocking socket: returns the bytes received, 0 at the end, or -1 with errno, which is EAGAIN if
// nothing has arrived.
ssize_t receive_some(Transport *transport, void *data, size_t room) noexcept;

// Whether a read of `got` bytes into `room` bytes has emptied the socket.
inline bool has_emptied(const Transport *transport, size_t got, size_t room) noexcept {
    return transport->tls ? !transport->tls.unread : got < room;
}

// Checks without reading.
Unread look_for_unread(Transport *transport) noexcept;

// Sets SO_RCVLOWAT: the kernel reports fewer bytes only at the end. `bytes` of contents must be missing; under TLS, the
// library may hold some of them, so the mark is lower.
void set_low_water(Transport *transport, int bytes) noexcept;

// Bytes that were sent but not acknowledged by the peer; under TLS an estimate.
uint64_t unacknowledged(Transport *transport) noexcept;

// Whether the peer has gone. A half-closed peer may still read, so it is sent `100 Continue` once, and `*probed` is
// set: if it has gone, its system answers with a reset, which the next call sees.
bool is_peer_gone(Transport *transport, bool *probed) noexcept;

// The state of the peer of an answer in pieces, as known without sending. `half_closed`: sends nothing more, but may
// read.
enum class Peer : uint8_t { open, half_closed, gone };
Peer look_at_peer(Transport *transport) noexcept;

// Waits until the socket may take bytes, or for `ms` milliseconds.
void await_writable(Transport *transport, int ms) noexcept;

// As sendmsg() on a non-blocking socket: returns the bytes sent, or -1 with errno. Under TLS small parts are sent
// together in one record, and large parts without a copy; after EAGAIN the next call must start with the same bytes.
ssize_t send_some(Transport *transport, const iovec *parts, int count) noexcept;

// Sends as much of an answer as the socket takes now.
Sent send_now(Transport *transport, Outgoing *out) noexcept;

// Sends `100 Continue`, or nothing if the socket is full. False if the connection is broken.
bool send_continue(Transport *transport) noexcept;

// Shuts down sending. Data from the peer is discarded from now on.
void end_sending(Transport *transport) noexcept;

void close_transport(Transport *transport) noexcept;

}  // namespace ksrv
