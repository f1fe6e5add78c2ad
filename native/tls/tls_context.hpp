// The settings that all TLS connections of a server share: certificate, authorities for clients' certificates, rules.

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tls/openssl.hpp"
#include "tls/ticket_keys.hpp"

namespace ksrv {

struct TlsRules {
    std::string chain, key;      // paths of PEM files
    std::string authority;       // path of the authorities for clients' certificates; empty for none
    bool asks = false;           // ask for a client's certificate
    bool demands = false;        // refuse clients without a certificate
    unsigned long verify_flags = 0;
    long least_version = 0, most_version = 0;  // of TLS, as on the wire; 0 for the library's default
    std::string ciphers;         // of TLS 1.2, in OpenSSL's notation
    std::vector<std::string> protocols;  // for ALPN, in order of preference
    // Sessions resume in every context with the same keys; null for separate keys.
    std::shared_ptr<TicketKeys> ticket_keys;
};

class TlsContext {
  public:
    TlsContext() = default;
    TlsContext(const TlsContext &) = delete;
    TlsContext &operator=(const TlsContext &) = delete;
    ~TlsContext();

    // Call it once, before `new_session`. On failure, `why` says which setting cannot be used.
    bool set_up(const TlsRules &rules, std::string *why);

    SSL *new_session() const noexcept { return openssl.SSL_new(context_); }

  private:
    // The callback for ALPN.
    static int choose_protocol(SSL *, const unsigned char **chosen, unsigned char *length,
                               const unsigned char *offered, unsigned int offered_length,
                               void *context) noexcept;
    // The callback for ticket keys.
    static int use_ticket_key(SSL *, unsigned char *name, unsigned char *iv, EVP_CIPHER_CTX *, EVP_MAC_CTX *,
                              int is_new) noexcept;
    // Rejects tickets of sessions whose client certificate has expired.
    static int judge_ticket(SSL *, SSL_SESSION *session, const unsigned char *, size_t, int status, void *) noexcept;

    // Sends clients the names of the trusted authorities, by which a client with several certificates chooses.
    bool name_authorities(const std::string &authority) noexcept;

    // SSL_CTX_ctrl.
    long control(int what, long value) noexcept;
    // Sets the options that no rule changes.
    void set_constants() noexcept;
    bool apply(const TlsRules &rules, std::string *why);
    bool set_up_tickets(const TlsRules &rules, std::string *why);

    SSL_CTX *context_ = nullptr;
    std::vector<std::string> protocols_;
    std::shared_ptr<TicketKeys> ticket_keys_;
};

}  // namespace ksrv
