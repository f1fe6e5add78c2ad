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
    bool wants_write = false;  // it must write before it can read on
    bool interim_waits = false;  // an interim answer must be sent before anything else is

    explicit operator bool() const noexcept { return ssl != nullptr; }

    bool begin(const TlsContext &context, int fd) noexcept;
    Handshake shake_hands() noexcept;
    bool resumed() const noexcept { return openssl.SSL_session_reused(ssl) == 1; }

    bool agreed_on(const char *protocol) const noexcept;  // by ALPN

    // As recv() on a socket that does not block. At most one record comes with one call.
    ssize_t receive(void *data, size_t room) noexcept;
    // As send(), for at most one record. After EAGAIN it must be called with the same bytes again, which may
    // lie elsewhere, and more may follow them.
    ssize_t send(const void *data, size_t length) noexcept;

    void say_farewell() noexcept;  // that nothing more is sent
    void end() noexcept;
};

}  // namespace ksrv
