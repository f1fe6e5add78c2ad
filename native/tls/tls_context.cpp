#include "tls/tls_context.hpp"

#include <cstring>

#include "tls/tls_session.hpp"

namespace ksrv {

using namespace openssl_value;

namespace {

// The limit of a CertificateRequest in TLS 1.2 and of an extension in TLS 1.3 (RFC 5246 7.4.4, RFC 8446 4.2.4).
constexpr size_t MOST_NAMES = 60000;

int no_password(char *, int, int, void *) { return 0; }  // otherwise OpenSSL would ask on the terminal

std::string last_error() {
    char text[256] = "OpenSSL gives no reason";
    if (const unsigned long code = openssl.ERR_peek_error()) {
        openssl.ERR_error_string_n(code, text, sizeof text);
        openssl.ERR_clear_error();
    }
    return text;
}

}  // namespace

TlsContext::~TlsContext() {
    if (context_) openssl.SSL_CTX_free(context_);
}

bool TlsContext::set_up(const TlsRules &rules, std::string *why) {
    if (const char *missing = load_openssl()) {
        *why = missing;
        return false;
    }
    openssl.ERR_clear_error();
    context_ = openssl.SSL_CTX_new(openssl.TLS_server_method());
    if (!context_) {
        *why = "no context: " + last_error();
        return false;
    }
    set_constants();
    return apply(rules, why) && set_up_tickets(rules, why);
}

long TlsContext::control(int what, long value) noexcept {
    return openssl.SSL_CTX_ctrl(context_, what, value, nullptr);
}

// Sets what no rule changes.
void TlsContext::set_constants() noexcept {
    // HTTP messages have an explicit length, so an end of file without close_notify truncates nothing unnoticed.
    openssl.SSL_CTX_set_options(context_, OPTION_NO_COMPRESSION | OPTION_NO_RENEGOTIATION |
                                              OPTION_SERVER_PREFERENCE | OPTION_IGNORE_UNEXPECTED_EOF);
    // KTLS would send from the memory of the first attempt, but `send_now` may move the memory.
    openssl.SSL_CTX_clear_options(context_, OPTION_KTLS);
    control(CTRL_MODE, MODE_PARTIAL_WRITE | MODE_MOVING_WRITE_BUFFER | MODE_RELEASE_BUFFERS);
    control(CTRL_READ_AHEAD, 1);
    openssl.SSL_CTX_set_msg_callback(context_, TlsSession::see_message);
    openssl.SSL_CTX_set_default_read_buffer_len(context_, TlsSession::READ_BUFFER);
    // Clients keep their sessions as tickets, so the server stores none.
    control(CTRL_SESSION_CACHE, SESSION_CACHE_OFF);
    static constexpr unsigned char sessions[] = "ksrv";
    openssl.SSL_CTX_set_session_id_context(context_, sessions, sizeof sessions - 1);
    openssl.SSL_CTX_set_default_passwd_cb(context_, no_password);
}

// Applies the rules, except for tickets.
bool TlsContext::apply(const TlsRules &rules, std::string *why) {
    const auto refuse = [why](const std::string &what) {
        *why = what + ": " + last_error();
        return false;
    };
    if (rules.least_version && control(CTRL_LEAST_VERSION, rules.least_version) != 1)
        return refuse("the least version of TLS");
    if (rules.most_version && control(CTRL_MOST_VERSION, rules.most_version) != 1)
        return refuse("the highest version of TLS");
    if (!rules.ciphers.empty() && openssl.SSL_CTX_set_cipher_list(context_, rules.ciphers.c_str()) != 1)
        return refuse("the ciphers");
    if (openssl.SSL_CTX_use_certificate_chain_file(context_, rules.chain.c_str()) != 1)
        return refuse("the certificate");
    if (openssl.SSL_CTX_use_PrivateKey_file(context_, rules.key.c_str(), FILE_PEM) != 1)
        return refuse("the key");
    if (openssl.SSL_CTX_check_private_key(context_) != 1)
        return refuse("the key of the certificate");
    if (!rules.authority.empty() && openssl.SSL_CTX_load_verify_file(context_, rules.authority.c_str()) != 1)
        return refuse("the authority of clients");
    if (openssl.X509_VERIFY_PARAM_set_flags(openssl.SSL_CTX_get0_param(context_), rules.verify_flags) != 1)
        return refuse("the flags for verification");
    if (rules.asks) {
        openssl.SSL_CTX_set_verify(context_, VERIFY_PEER | (rules.demands ? VERIFY_FAIL_WITHOUT : 0), nullptr);
        if (!rules.authority.empty() && !name_authorities(rules.authority))
            return refuse("the names of the authorities of clients");
    }
    protocols_ = rules.protocols;
    if (!protocols_.empty()) openssl.SSL_CTX_set_alpn_select_cb(context_, choose_protocol, this);
    return true;
}

bool TlsContext::set_up_tickets(const TlsRules &rules, std::string *why) {
    ticket_keys_ = rules.ticket_keys ? rules.ticket_keys : TicketKeys::make();
    if (!ticket_keys_ || openssl.SSL_CTX_set_ex_data(context_, APP_DATA, ticket_keys_.get()) != 1 ||
        openssl.SSL_CTX_set_tlsext_ticket_key_evp_cb(context_, use_ticket_key) != 1 ||
        openssl.SSL_CTX_set_session_ticket_cb(context_, nullptr, judge_ticket, nullptr) != 1) {
        *why = "the keys of tickets: " + last_error();
        return false;
    }
    openssl.SSL_CTX_set_timeout(context_, TicketKeys::PERIOD_S);
    return true;
}

// Chooses the first of the server's protocols that the client offers. If the client offers none of them, ALPN is not
// answered, and the client is expected to use HTTP/1.1.
int TlsContext::choose_protocol(SSL *, const unsigned char **chosen, unsigned char *length,
                                const unsigned char *offered, unsigned int offered_length,
                                void *context) noexcept {
    for (const std::string &protocol : static_cast<const TlsContext *>(context)->protocols_) {
        for (unsigned int at = 0; at < offered_length; at += 1u + offered[at]) {
            const unsigned int size = offered[at];
            if (size + 1u > offered_length - at) return ALPN_IGNORED;
            if (size != protocol.size() || memcmp(offered + at + 1, protocol.data(), size) != 0) continue;
            *chosen = offered + at + 1;
            *length = static_cast<unsigned char>(size);
            return ALPN_CHOSEN;
        }
    }
    return ALPN_IGNORED;
}

bool TlsContext::name_authorities(const std::string &authority) noexcept {
    stack_st_X509_NAME *names = openssl.SSL_load_client_CA_file(authority.c_str());
    if (!names) return false;
    openssl.SSL_CTX_set_client_CA_list(context_, names);  // takes ownership of the list
    const auto *stack = reinterpret_cast<const OPENSSL_STACK *>(names);
    size_t length = 0;
    for (int i = 0; i < openssl.OPENSSL_sk_num(stack); ++i)
        length += 2 + static_cast<size_t>(openssl.i2d_X509_NAME(
                          static_cast<const X509_NAME *>(openssl.OPENSSL_sk_value(stack, i)), nullptr));
    // OpenSSL cannot build a message with more names. Clients that receive no names choose a certificate themselves.
    if (length > MOST_NAMES) openssl.SSL_CTX_set_client_CA_list(context_, nullptr);
    return true;
}

int TlsContext::use_ticket_key(SSL *ssl, unsigned char *name, unsigned char *iv, EVP_CIPHER_CTX *cipher,
                               EVP_MAC_CTX *mac, int is_new) noexcept {
    void *keys = openssl.SSL_CTX_get_ex_data(openssl.SSL_get_SSL_CTX(ssl), APP_DATA);
    return static_cast<TicketKeys *>(keys)->use(name, iv, cipher, mac, is_new != 0);
}

// A resumed session does not verify the client's certificate, and renews its ticket, so that a client could continue
// for ever after its certificate has expired. Therefore the ticket is ignored if the certificate has expired, and the
// full handshake verifies the current certificate.
int TlsContext::judge_ticket(SSL *, SSL_SESSION *session, const unsigned char *, size_t, int status, void *) noexcept {
    if (status != TICKET_SUCCESS && status != TICKET_SUCCESS_RENEW) return TICKET_IGNORE_RENEW;
    const X509 *const peer = openssl.SSL_SESSION_get0_peer(session);
    if (peer && openssl.X509_cmp_current_time(openssl.X509_get0_notAfter(peer)) <= 0) return TICKET_IGNORE_RENEW;
    return status == TICKET_SUCCESS ? TICKET_USE : TICKET_USE_RENEW;
}

}  // namespace ksrv
