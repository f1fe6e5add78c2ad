#include "tls/ticket_keys.hpp"

#include <errno.h>
#include <pthread.h>
#include <sys/mman.h>

#include <cstring>
#include <new>

namespace ksrv {

using namespace openssl_value;

namespace {

constexpr int64_t PERIOD_NS = TicketKeys::PERIOD_S * 1'000'000'000;

// Return values as in SSL_CTX_set_tlsext_ticket_key_cb(3).
constexpr int FAILED = -1, UNKNOWN = 0, FOUND = 1, FOUND_AND_RENEWED = 2;

}  // namespace

struct TicketKeys::Shared {
    // HMAC-SHA256 over AES-256-CBC, as RFC 5077 section 4 recommends.
    struct Key {
        unsigned char name[TICKET_KEY_NAME], mac[32], cipher[32];
    };

    pthread_mutex_t lock;
    int64_t current_since;  // when the current key was made; 0: no keys yet
    bool has_previous;
    Key current, previous;

    // Locks the mutex. If a process was killed while it held the lock, a key may be incomplete, so the keys are
    // discarded.
    void hold() noexcept {
        if (pthread_mutex_lock(&lock) != EOWNERDEAD) return;
        current_since = 0;
        pthread_mutex_consistent(&lock);
    }

    // Replaces the current key if its period is over. The caller holds the lock. False if no random bytes are
    // available.
    bool renew(int64_t now) noexcept {
        const int64_t age = now - current_since;
        if (current_since != 0 && age < PERIOD_NS) return true;
        has_previous = current_since != 0 && age < 2 * PERIOD_NS;
        previous = has_previous ? current : Key{};
        current_since = 0;
        if (openssl.RAND_bytes(reinterpret_cast<unsigned char *>(&current), sizeof current) != 1) return false;
        current_since = now;
        return true;
    }
};

std::shared_ptr<TicketKeys> TicketKeys::make(Clock clock) noexcept {
    if (load_openssl()) return nullptr;
    void *memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
    madvise(memory, sizeof(Shared), MADV_DONTDUMP);
    Shared *shared = new (memory) Shared{};
    pthread_mutexattr_t kind;
    pthread_mutexattr_init(&kind);
    pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&shared->lock, &kind);
    pthread_mutexattr_destroy(&kind);
    TicketKeys *made = new (std::nothrow) TicketKeys(shared, clock);
    if (!made) munmap(memory, sizeof(Shared));
    return std::shared_ptr<TicketKeys>(made);
}

TicketKeys::~TicketKeys() { munmap(shared_, sizeof(Shared)); }

int TicketKeys::use(unsigned char *name, unsigned char *iv, EVP_CIPHER_CTX *cipher, EVP_MAC_CTX *mac,
                    bool is_new) noexcept {
    if (is_new && openssl.RAND_bytes(iv, TICKET_IV) != 1) return FAILED;
    Shared::Key key;
    int found = FOUND;
    shared_->hold();
    if (!shared_->renew(clock_())) {
        found = is_new ? FAILED : UNKNOWN;
    } else if (is_new || memcmp(name, shared_->current.name, sizeof key.name) == 0) {
        key = shared_->current;
    } else if (shared_->has_previous && memcmp(name, shared_->previous.name, sizeof key.name) == 0) {
        key = shared_->previous;
        found = FOUND_AND_RENEWED;
    } else {
        found = UNKNOWN;
    }
    pthread_mutex_unlock(&shared_->lock);
    if (found == FAILED || found == UNKNOWN) return found;
    if (is_new) memcpy(name, key.name, sizeof key.name);
    char digest[] = "SHA256";
    const Param rules[] = {{MAC_KEY, PARAM_OCTET_STRING, key.mac, sizeof key.mac, 0},
                           {MAC_DIGEST, PARAM_UTF8_STRING, digest, sizeof digest - 1, 0},
                           {nullptr, 0, nullptr, 0, 0}};
    const bool ready =
        openssl.EVP_CipherInit_ex(cipher, openssl.EVP_aes_256_cbc(), nullptr, key.cipher, iv, is_new) == 1 &&
        openssl.EVP_MAC_CTX_set_params(mac, reinterpret_cast<const OSSL_PARAM *>(rules)) == 1;
    explicit_bzero(&key, sizeof key);
    return ready ? found : FAILED;
}

}  // namespace ksrv
