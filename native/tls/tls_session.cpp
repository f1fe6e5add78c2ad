#include "tls/tls_session.hpp"

#include <errno.h>

#include <algorithm>

namespace ksrv {

using namespace openssl_value;

namespace {

constexpr size_t RECORD_BYTES = 16384;  // the most data in a record (RFC 8446 5.1)

// Clears errors of other OpenSSL users on this thread, such as a handler, because they would count as this session's.
void forget_errors() noexcept {
    openssl.ERR_clear_error();
    errno = 0;
}

// Repeats a call that a signal interrupted, because no event would report the remaining bytes.
template <typename Call> int uninterrupted(const Call &call) noexcept {
    for (;;) {
        forget_errors();
        const int done = call();
        if (done > 0 || errno != EINTR) return done;
    }
}

}  // namespace

// OpenSSL must know which session's records it receives, because a session moves from thread to thread.
void TlsSession::begin_call() noexcept {
    openssl.SSL_ctrl(ssl, CTRL_SEE_MESSAGE_ARGUMENT, 0, this);
}

// Counts records, to limit how long one call of OpenSSL may take. SSL_read reads records until a record has
// application data, so the peer decides how many: each KeyUpdate (RFC 8446 4.6.3) takes 10 us, and refused
// renegotiations do not end the call either. Clearing SSL_MODE_AUTO_RETRY does not help while the buffer has bytes.
// SSL_do_handshake reads until a message is complete, which may arrive in records of one byte. If a peer sends too many
// records, the session behaves as if the peer had closed, which ends the call at once.
void TlsSession::see_message(int is_sent, int, int type, const void *, size_t, SSL *ssl, void *session) noexcept {
    TlsSession *self = static_cast<TlsSession *>(session);
    if (is_sent || type != RECORD_HEADER) return;
    ++self->turn_records;
    // The record's content is not known yet: after the last permitted empty record, it may be data.
    const uint32_t most = self->agreed ? MOST_EMPTY_RECORDS + 1 : MOST_HANDSHAKE_RECORDS;
    if (++self->empty_records <= most) return;
    self->flooded = true;
    openssl.SSL_set_shutdown(ssl, RECEIVED_SHUTDOWN);
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
    begin_call();
    const int done = uninterrupted([&] { return openssl.SSL_do_handshake(ssl); });
    if (done == 1) {
        agreed = true;
        socket_unread = true;  // the library may have read bytes after the handshake
        wants_write = false;
        empty_records = turn_records = 0;
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
    if (turn_records >= MOST_TURN_RECORDS) {  // the other connections have waited long enough
        turn_records = 0;
        unread = true;
        errno = EAGAIN;
        return -1;
    }
    begin_call();
    wants_write = false;
    const uint32_t records_before = turn_records;
    socket_unread = socket_unread || unread || partial_record;
    const int most = static_cast<int>(std::min(room, size_t{1} << 30));
    const int got = uninterrupted([&] { return openssl.SSL_read(ssl, data, most); });
    if (got > 0) {
        empty_records = 0;
        partial_record = false;
        unread = openssl.SSL_has_pending(ssl) == 1;
        return got;
    }
    unread = false;
    if (flooded) {
        openssl.ERR_clear_error();
        errno = EPROTO;
        return -1;
    }
    const int system = errno;
    switch (openssl.SSL_get_error(ssl, got)) {
    case ERROR_WANT_WRITE:
        wants_write = true;
        [[fallthrough]];
    case ERROR_WANT_READ:
        // A record is counted, but not pending, while only its header has arrived.
        partial_record = partial_record || turn_records != records_before || openssl.SSL_has_pending(ssl) == 1;
        socket_unread = false;
        turn_records = 0;
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
    const int most = static_cast<int>(std::min(length, RECORD_BYTES));
    const int sent = uninterrupted([&] { return openssl.SSL_write(ssl, data, most); });
    if (sent > 0) return sent;
    const int error = openssl.SSL_get_error(ssl, sent);
    openssl.ERR_clear_error();
    errno = error == ERROR_WANT_WRITE ? EAGAIN : EPIPE;
    return -1;
}

void TlsSession::say_farewell() noexcept {
    forget_errors();
    openssl.SSL_shutdown(ssl);  // if the socket is full, close_notify is not sent
    openssl.ERR_clear_error();
}

void TlsSession::end() noexcept {
    if (ssl) openssl.SSL_free(ssl);
    *this = TlsSession{};
}

}  // namespace ksrv
