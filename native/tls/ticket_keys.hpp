// The keys that session tickets are encrypted with (RFC 5077), which are renewed on a clock.
//
// All processes that were forked behind `make` see the same keys: they lie in shared memory, as a session may resume in
// any of them. Whichever process first needs a key behind its time makes the next one, and forgets the last but one: what
// was recorded on the wire cannot be read with keys that are taken from the server later.

#pragma once

#include <cstdint>
#include <memory>

#include "base/clock.hpp"
#include "tls/openssl.hpp"

namespace ksrv {

class TicketKeys {
  public:
    // A key is used for new tickets for a period, and for the tickets made with it for one period more. A ticket is valid
    // for a period, so that none outlives its key.
    static constexpr int64_t PERIOD_S = 3600;

    using Clock = int64_t (*)() noexcept;  // in nanoseconds

    // Null where there is no memory or no OpenSSL.
    static std::shared_ptr<TicketKeys> make(Clock clock = now_ns) noexcept;

    TicketKeys(const TicketKeys &) = delete;
    TicketKeys &operator=(const TicketKeys &) = delete;
    ~TicketKeys();

    // What OpenSSL's callback for tickets has to do, with what it has to return: see SSL_CTX_set_tlsext_ticket_key_cb(3).
    int use(unsigned char *name, unsigned char *iv, EVP_CIPHER_CTX *cipher, EVP_MAC_CTX *mac, bool is_new) noexcept;

  private:
    struct Shared;

    TicketKeys(Shared *shared, Clock clock) noexcept : shared_(shared), clock_(clock) {}

    Shared *shared_;
    Clock clock_;
};

}  // namespace ksrv
