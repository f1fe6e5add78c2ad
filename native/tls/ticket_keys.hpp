// The keys that encrypt session tickets (RFC 5077), with periodic renewal.
//
// All processes that are forked after `make` use the same keys, in shared memory, because a session may resume in any
// of them. The first process that needs a key after the end of a period makes the next key, and deletes all but the
// previous one. So recorded traffic cannot be decrypted with keys that are stolen from the server later.

#pragma once

#include <cstdint>
#include <memory>

#include "base/clock.hpp"
#include "tls/openssl.hpp"

namespace ksrv {

class TicketKeys {
  public:
    // A key encrypts new tickets for one period, and decrypts its tickets for one more. A ticket is valid for one
    // period, so that no ticket outlives its key.
    static constexpr int64_t PERIOD_S = 3600;

    using Clock = int64_t (*)() noexcept;  // in nanoseconds

    // Null if memory is short or OpenSSL is missing.
    static std::shared_ptr<TicketKeys> make(Clock clock = now_ns) noexcept;

    TicketKeys(const TicketKeys &) = delete;
    TicketKeys &operator=(const TicketKeys &) = delete;
    ~TicketKeys();

    // Implements OpenSSL's ticket callback, with its return values: see SSL_CTX_set_tlsext_ticket_key_cb(3).
    int use(unsigned char *name, unsigned char *iv, EVP_CIPHER_CTX *cipher, EVP_MAC_CTX *mac, bool is_new) noexcept;

  private:
    struct Shared;

    TicketKeys(Shared *shared, Clock clock) noexcept : shared_(shared), clock_(clock) {}

    Shared *shared_;
    Clock clock_;
};

}  // namespace ksrv
