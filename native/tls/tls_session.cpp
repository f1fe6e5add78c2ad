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

// Calls the library again where a signal has interrupted it: no event would tell of what that left.
template <typename Call> int uninterrupted(const Call &call) noexcept {
    for (;;) {
        forget_errors();
        const int done = call();
        if (done > 0 || errno != EINTR) return done;
    }
}

}  // namespace

// A session moves from one owner to another: OpenSSL is told anew whose records it receives.
void TlsSession::begin_call() noexcept {
    openssl.SSL_ctrl(ssl, CTRL_SEE_MESSAGE_ARGUMENT, 0, this);
}

// SSL_read goes on from record to record until one has application data, so that the peer decides how long it takes: a
// KeyUpdate (RFC 8446 4.6.3) costs 10 us, and renegotiations that are refused do not end it either. Without
// SSL_MODE_AUTO_RETRY it does the same for as long as its buffer holds bytes. SSL_do_handshake goes on until a message
// is whole, which may come in records of one byte. So each record is counted where it begins, and a peer that sends too
// many is treated like one that has closed, which ends the call at once.
void TlsSession::see_message(int is_sent, int, int type, const void *, size_t, SSL *ssl, void *session) noexcept {
    TlsSession *self = static_cast<TlsSession *>(session);
    if (is_sent || type != RECORD_HEADER) return;
    ++self->turn_records;
    // What is in the record is not known yet: behind the last empty one that is allowed, it may be data.
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
        socket_unread = true;  // the library may have read what is behind the handshake
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
    if (turn_records >= MOST_TURN_RECORDS) {
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
        // A record whose header alone has come is not pending; it was counted.
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
    const int most = static_cast<int>(std::min(length, RECORD));
    const int sent = uninterrupted([&] { return openssl.SSL_write(ssl, data, most); });
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
    *this = TlsSession{};
}

}  // namespace ksrv
