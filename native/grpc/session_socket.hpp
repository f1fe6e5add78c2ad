// The socket of an HTTP/2 session: reads bytes into the session, and sends what the session makes.

#pragma once

#include <cstddef>
#include <cstdint>

#include "http/transport.hpp"
#include "http2/outgoing_bytes.hpp"

namespace ksrv::grpc {

class Connection;
class Server;
class Streams;

// Used only by the connection's owner.
class SessionSocket {
  public:
    static constexpr uint64_t LINGER_NS = 2'000'000'000u;  // how long the peer may take to receive the last frames

    SessionSocket(Connection *connection, Streams *streams, int fd) noexcept;
    void open() noexcept;
    ~SessionSocket() { close_transport(&transport_); }

    // Runs a step of the TLS handshake, in its turn (`may_run`), once the client has sent something: a silent client
    // must not cost memory.
    Handshake shake_hands(bool may_run) noexcept;
    // Reads until the socket is empty or the turn is over. False if the connection must end.
    bool read() noexcept;
    // Sends as much as the socket takes. False if the connection is broken.
    bool flush() noexcept;
    // Whether the client is too slow to receive.
    bool is_too_slow() noexcept;
    // Discards what the peer sends. False once it has closed.
    bool discard() noexcept;
    // Sends nothing more. False if the peer sends nothing more either.
    bool end_sending() noexcept;
    void close() noexcept;
    void note_readable() noexcept { readable_ = true; }
    void note_writable() noexcept { readable_ = readable_ || transport_.tls.wants_write; }
    void note_hung_up() noexcept { hung_up_ = true; }
    // Frames may be sent from now on, even if the client's preface has not arrived.
    void allow_frames() noexcept { may_send_ = true; }
    bool is_agreed() const noexcept;  // the TLS handshake is done, or TLS is off
    bool may_read() const noexcept;
    // Whether bytes have arrived that were not read.
    bool holds_unread() noexcept { return look_for_unread(&transport_) == Unread::some; }

    http2::OutgoingBytes out;

  private:
    bool read_once(bool *more) noexcept;
    bool find_preface(const unsigned char *data, size_t length) noexcept;
    bool take_bytes(const unsigned char *data, size_t length) noexcept;
    void count_copied() noexcept;

    Connection &connection_;
    Server &server_;
    Streams &streams_;
    Transport transport_;
    bool readable_ = false;       // the socket may have bytes: epoll reports new bytes only once
    bool hung_up_ = false;        // the peer will send no more than it has sent
    bool ended_ = false;          // the peer has sent its last byte, or is gone
    bool handshake_queued_ = false;  // the TLS handshake waits for a turn
    bool may_send_ = false;       // frames may be sent: the preface has arrived, or the connection ends
    size_t preface_bytes_ = 0;    // bytes of the preface that have arrived
    size_t counted_copied_ = 0;   // copied bytes of `out` that are counted in the budget
    uint64_t sent_bytes_ = 0;
    uint64_t blocked_ns_ = 0;     // when the socket was full; 0 if it is not
    uint64_t blocked_sent_ = 0;   // `sent_bytes_` at that time
};

}  // namespace ksrv::grpc
