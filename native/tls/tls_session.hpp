// A TLS connection over a non-blocking socket. Called only by the owner of the connection.

#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

#include "tls/openssl.hpp"
#include "tls/tls_context.hpp"

namespace ksrv {

// The outcome of a step of a handshake. `plain_http`: the client speaks HTTP without TLS.
enum class Handshake : uint8_t { done, waits, plain_http, failed };

struct TlsSession {
    SSL *ssl = nullptr;
    bool unread = false;       // the library may have bytes that no event will report
    // The socket may also have unread bytes, because the library reads the rest of a partial record without further
    // bytes, and returns buffered data without reading the socket. True until `receive` returns EAGAIN.
    bool socket_unread = false;
    bool partial_record = false;  // the library waits for the rest of a record
    bool wants_write = false;     // the library must write before it can continue reading
    bool interim_waits = false;  // an interim answer must be sent first
    bool agreed = false;         // the handshake is finished
    bool flooded = false;        // the peer has sent too many records without application data
    // Consecutive records without application data; during the handshake, records of the handshake.
    uint32_t empty_records = 0;
    uint32_t turn_records = 0;   // records received in this turn

    static constexpr uint32_t MOST_EMPTY_RECORDS = 32;       // BoringSSL's limit on consecutive key updates
    // The longest certificate chain of a client, in records of 256 bytes.
    static constexpr uint32_t MOST_HANDSHAKE_RECORDS = 512;
    // This many full records have TURN_BYTES of the HTTP server. Decrypting them takes a few milliseconds.
    static constexpr uint32_t MOST_TURN_RECORDS = 512;

    explicit operator bool() const noexcept { return ssl != nullptr; }

    // The most bytes that the library reads ahead: several records, so that a large body needs fewer system calls.
    static constexpr int READ_BUFFER = 65536;

    bool begin(const TlsContext &context, int fd) noexcept;
    Handshake shake_hands() noexcept;
    bool resumed() const noexcept { return openssl.SSL_session_reused(ssl) == 1; }

    // As recv() on a non-blocking socket. Returns at most one record per call. EAGAIN with `unread` set means that the
    // turn is over: the caller serves other connections, and calls again without an event. If the peer floods the
    // session, it fails with EPROTO.
    ssize_t receive(void *data, size_t room) noexcept;
    // As send(), for at most one record. After EAGAIN it must be called again with the same bytes, which may have
    // moved, and which more bytes may follow.
    ssize_t send(const void *data, size_t length) noexcept;

    void say_farewell() noexcept;  // sends close_notify
    void end() noexcept;

    // OpenSSL's callback for every message and record that it sends or receives.
    static void see_message(int is_sent, int version, int type, const void *bytes, size_t length, SSL *ssl,
                            void *session) noexcept;

  private:
    void begin_call() noexcept;
};

}  // namespace ksrv
