// One TLS connection over a socket that does not block. Only the owner of the connection calls its functions.

#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

#include "tls/openssl.hpp"
#include "tls/tls_context.hpp"

namespace ksrv {

// `plain_http`: the client speaks HTTP without TLS.
enum class Handshake : uint8_t { done, waits, plain_http, failed };

struct TlsSession {
    SSL *ssl = nullptr;
    bool unread = false;       // the library may hold bytes that no event will tell of
    // The socket may, too: the library reads the rest of a record that came in part alone, however much is behind it,
    // and gives what it held before without a look at the socket. True until `receive` says EAGAIN.
    bool socket_unread = false;
    bool partial_record = false;  // the library waits for the rest of a record
    bool wants_write = false;  // it must write before it can read on
    bool interim_waits = false;  // an interim answer must be sent before anything else is
    bool agreed = false;         // the handshake is done
    bool flooded = false;        // the peer has sent too many records without application data
    uint32_t empty_records = 0;  // received in a row without application data; those of the handshake, until it is done
    uint32_t turn_records = 0;   // received since `receive` last said that a turn is over

    static constexpr uint32_t MOST_EMPTY_RECORDS = 32;       // BoringSSL's bound on key updates in a row
    static constexpr uint32_t MOST_HANDSHAKE_RECORDS = 512;  // a client's longest chain of certificates in 256 bytes each
    // As many whole records hold TURN_BYTES of the HTTP server; decrypting them takes some milliseconds.
    static constexpr uint32_t MOST_TURN_RECORDS = 512;

    explicit operator bool() const noexcept { return ssl != nullptr; }

    bool begin(const TlsContext &context, int fd) noexcept;
    Handshake shake_hands() noexcept;
    bool resumed() const noexcept { return openssl.SSL_session_reused(ssl) == 1; }

    // As recv() on a socket that does not block. At most one record comes with one call. EAGAIN with `unread` set says
    // that the turn is over: the caller serves other connections and calls again without an event. A peer that floods
    // the session makes it fail with EPROTO.
    ssize_t receive(void *data, size_t room) noexcept;
    // As send(), for at most one record. After EAGAIN it must be called with the same bytes again, which may
    // lie elsewhere, and more may follow them.
    ssize_t send(const void *data, size_t length) noexcept;

    void say_farewell() noexcept;  // that nothing more is sent
    void end() noexcept;

    // OpenSSL calls it for every message and every record that it sends or receives.
    static void see_message(int is_sent, int version, int type, const void *bytes, size_t length, SSL *ssl,
                            void *session) noexcept;

  private:
    void begin_call() noexcept;
};

}  // namespace ksrv
