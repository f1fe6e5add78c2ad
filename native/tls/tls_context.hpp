// What all TLS connections of a server share: its certificate, the authorities for clients' certificates, the rules.

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tls/openssl.hpp"
#include "tls/ticket_keys.hpp"

namespace ksrv {

struct TlsRules {
    std::string chain, key;      // paths of PEM files
    std::string authority;       // of clients' certificates; none where it is empty
    bool asks = false;           // for a client's certificate
    bool demands = false;        // and refuses clients without one
    unsigned long verify_flags = 0;
    long least_version = 0, most_version = 0;  // as on the wire; 0: the library's
    std::string ciphers;         // of TLS 1.2, in OpenSSL's notation
    std::vector<std::string> protocols;  // for ALPN, the best one first
    std::shared_ptr<TicketKeys> ticket_keys;  // sessions resume in every context that has them; none: its own
};

class TlsContext {
  public:
    TlsContext() = default;
    TlsContext(const TlsContext &) = delete;
    TlsContext &operator=(const TlsContext &) = delete;
    ~TlsContext();

    // True, or false and in `why` what cannot be used. Once, before anything else.
    bool set_up(const TlsRules &rules, std::string *why);

    SSL *new_session() const noexcept { return openssl.SSL_new(context_); }

  private:
    static int choose_protocol(SSL *, const unsigned char **chosen, unsigned char *length,
                               const unsigned char *offered, unsigned int offered_length,
                               void *context) noexcept;
    static int use_ticket_key(SSL *, unsigned char *name, unsigned char *iv, EVP_CIPHER_CTX *, EVP_MAC_CTX *,
                              int is_new) noexcept;

    static int judge_ticket(SSL *, SSL_SESSION *session, const unsigned char *, size_t, int status, void *) noexcept;

    // Tells clients which authorities are trusted, by which those that have several certificates choose one.
    bool name_authorities(const std::string &authority) noexcept;

    SSL_CTX *context_ = nullptr;
    std::vector<std::string> protocols_;
    std::shared_ptr<TicketKeys> ticket_keys_;
};

}  // namespace ksrv
