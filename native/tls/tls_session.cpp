#include "tls/tls_session.hpp"

#include <errno.h>

#include <algorithm>
#include <cstring>

namespace ksrv {

using namespace openssl_value;

namespace {

constexpr size_t RECORD = 16384;

// A handler that uses OpenSSL on this thread may have left errors, which would pass for this session's.
void forget_errors() noexcept {
    openssl.ERR_clear_error();
    errno = 0;
}

}  // namespace

bool TlsSession::agreed_on(const char *protocol) const noexcept {
    const unsigned char *chosen = nullptr;
    unsigned int length = 0;
    openssl.SSL_get0_alpn_selected(ssl, &chosen, &length);
    return length == strlen(protocol) && memcmp(chosen, protocol, length) == 0;
}

bool TlsSession::begin(const TlsContext &context, int fd) noexcept {
    forget_errors();
    ssl = context.new_session();
    if (!ssl) return false;
    if (openssl.SSL_set_fd(ssl, fd) != 1) {
        end();
        return false;
    }
    openssl.SSL_set_accept_state(ssl);
    return true;
}

Handshake TlsSession::shake_hands() noexcept {
    forget_errors();
    const int done = openssl.SSL_do_handshake(ssl);
    if (done == 1) {
        wants_write = false;
        return Handshake::done;
    }
    const int error = openssl.SSL_get_error(ssl, done);
    wants_write = error == ERROR_WANT_WRITE;
    if (wants_write || error == ERROR_WANT_READ) return Handshake::waits;
    const unsigned long code = error == ERROR_SSL ? openssl.ERR_peek_error() : 0;
    openssl.ERR_clear_error();
    const unsigned long reason = code & REASON_MASK;
    const bool http = ((code >> LIBRARY_SHIFT) & LIBRARY_MASK) == LIBRARY_SSL &&
                      (reason == REASON_HTTP_REQUEST || reason == REASON_HTTPS_PROXY_REQUEST);
    return http ? Handshake::plain_http : Handshake::failed;
}

ssize_t TlsSession::receive(void *data, size_t room) noexcept {
    forget_errors();
    wants_write = false;
    const int got = openssl.SSL_read(ssl, data, static_cast<int>(std::min(room, size_t{1} << 30)));
    if (got > 0) {
        unread = openssl.SSL_has_pending(ssl) == 1;
        return got;
    }
    unread = false;
    const int system = errno;
    switch (openssl.SSL_get_error(ssl, got)) {
    case ERROR_WANT_WRITE:
        wants_write = true;
        [[fallthrough]];
    case ERROR_WANT_READ:
        errno = EAGAIN;
        return -1;
    case ERROR_ZERO_RETURN:
        return 0;
    case ERROR_SYSCALL:
        errno = system ? system : ECONNRESET;
        return -1;
    default:
        openssl.ERR_clear_error();
        errno = EPROTO;
        return -1;
    }
}

ssize_t TlsSession::send(const void *data, size_t length) noexcept {
    forget_errors();
    const int sent = openssl.SSL_write(ssl, data, static_cast<int>(std::min(length, RECORD)));
    if (sent > 0) return sent;
    const int error = openssl.SSL_get_error(ssl, sent);
    openssl.ERR_clear_error();
    errno = error == ERROR_WANT_WRITE ? EAGAIN : EPIPE;
    return -1;
}

void TlsSession::say_farewell() noexcept {
    forget_errors();
    openssl.SSL_shutdown(ssl);  // where the socket is full, the peer does without
    openssl.ERR_clear_error();
}

void TlsSession::end() noexcept {
    if (ssl) openssl.SSL_free(ssl);
    ssl = nullptr;
    unread = wants_write = interim_waits = false;
}

}  // namespace ksrv
