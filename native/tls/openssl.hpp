// The functions of OpenSSL that TLS needs, found in the system's library when they are first asked for.
//
// They are declared here and loaded at run time, never linked: one build serves with TLS where OpenSSL is
// installed and without TLS where it is not, needs no headers, and a wheel of it uses the library that
// the system keeps secure. Where Python's ssl module has loaded the library, this is the same one.
// tests/unit/native/tls/openssl_declarations.cpp compares what is declared here with OpenSSL's own headers.

#pragma once

#include <cstddef>
#include <cstdint>

typedef struct ssl_st SSL;
typedef struct ssl_ctx_st SSL_CTX;
typedef struct ssl_method_st SSL_METHOD;
typedef struct X509_VERIFY_PARAM_st X509_VERIFY_PARAM;
typedef struct x509_store_ctx_st X509_STORE_CTX;

namespace ksrv {

using AlpnSelect = int (*)(SSL *, const unsigned char **, unsigned char *, const unsigned char *,
                           unsigned int, void *);
using AskForPassword = int (*)(char *, int, int, void *);
using VerifyCertificate = int (*)(int, X509_STORE_CTX *);

// result, name, arguments
#define KSRV_OPENSSL_FUNCTIONS(F)                                                                    \
    F(const SSL_METHOD *, TLS_server_method, ())                                                     \
    F(SSL_CTX *, SSL_CTX_new, (const SSL_METHOD *))                                                  \
    F(void, SSL_CTX_free, (SSL_CTX *))                                                               \
    F(long, SSL_CTX_ctrl, (SSL_CTX *, int, long, void *))                                            \
    F(uint64_t, SSL_CTX_set_options, (SSL_CTX *, uint64_t))                                          \
    F(uint64_t, SSL_CTX_clear_options, (SSL_CTX *, uint64_t))                                        \
    F(void, SSL_CTX_set_default_passwd_cb, (SSL_CTX *, AskForPassword))                              \
    F(int, SSL_CTX_use_certificate_chain_file, (SSL_CTX *, const char *))                            \
    F(int, SSL_CTX_use_PrivateKey_file, (SSL_CTX *, const char *, int))                              \
    F(int, SSL_CTX_check_private_key, (const SSL_CTX *))                                             \
    F(int, SSL_CTX_load_verify_file, (SSL_CTX *, const char *))                                      \
    F(void, SSL_CTX_set_verify, (SSL_CTX *, int, VerifyCertificate))                                 \
    F(X509_VERIFY_PARAM *, SSL_CTX_get0_param, (SSL_CTX *))                                          \
    F(int, SSL_CTX_set_cipher_list, (SSL_CTX *, const char *))                                       \
    F(int, SSL_CTX_set_session_id_context, (SSL_CTX *, const unsigned char *, unsigned int))         \
    F(void, SSL_CTX_set_alpn_select_cb, (SSL_CTX *, AlpnSelect, void *))                             \
    F(void, SSL_CTX_set_default_read_buffer_len, (SSL_CTX *, size_t))                                \
    F(SSL *, SSL_new, (SSL_CTX *))                                                                   \
    F(void, SSL_free, (SSL *))                                                                       \
    F(int, SSL_set_fd, (SSL *, int))                                                                 \
    F(void, SSL_set_accept_state, (SSL *))                                                           \
    F(int, SSL_do_handshake, (SSL *))                                                                \
    F(int, SSL_read, (SSL *, void *, int))                                                           \
    F(int, SSL_write, (SSL *, const void *, int))                                                    \
    F(int, SSL_shutdown, (SSL *))                                                                    \
    F(int, SSL_has_pending, (const SSL *))                                                           \
    F(int, SSL_get_error, (const SSL *, int))                                                        \
    F(int, SSL_session_reused, (const SSL *))                                                        \
    F(void, SSL_get0_alpn_selected, (const SSL *, const unsigned char **, unsigned int *))           \
    F(int, X509_VERIFY_PARAM_set_flags, (X509_VERIFY_PARAM *, unsigned long))                        \
    F(void, ERR_clear_error, ())                                                                     \
    F(unsigned long, ERR_peek_error, ())                                                             \
    F(void, ERR_error_string_n, (unsigned long, char *, size_t))                                     \
    F(const char *, OpenSSL_version, (int))

struct OpenSsl {
#define KSRV_DECLARE(result, name, arguments) result(*name) arguments = nullptr;
    KSRV_OPENSSL_FUNCTIONS(KSRV_DECLARE)
#undef KSRV_DECLARE
};

// Null until `load_openssl` has succeeded.
extern OpenSsl openssl;

// Finds the functions, once; null, or in one sentence why there are none.
const char *load_openssl() noexcept;

// The values that OpenSSL's macros have.
namespace openssl_value {

constexpr int FILE_PEM = 1;
constexpr int CTRL_MODE = 33, CTRL_READ_AHEAD = 41, CTRL_SESSION_CACHE = 44, CTRL_TICKET_KEYS = 59,
              CTRL_LEAST_VERSION = 123, CTRL_MOST_VERSION = 124;
constexpr long MODE_PARTIAL_WRITE = 1, MODE_MOVING_WRITE_BUFFER = 2, MODE_RELEASE_BUFFERS = 16;
constexpr long SESSION_CACHE_OFF = 0;
constexpr uint64_t OPTION_KTLS = 1u << 3, OPTION_IGNORE_UNEXPECTED_EOF = 1u << 7,
                   OPTION_NO_COMPRESSION = 1u << 17, OPTION_SERVER_PREFERENCE = 1u << 22,
                   OPTION_NO_RENEGOTIATION = 1u << 30;
constexpr int VERIFY_PEER = 1, VERIFY_FAIL_WITHOUT = 2;
constexpr int ERROR_SSL = 1, ERROR_WANT_READ = 2, ERROR_WANT_WRITE = 3, ERROR_SYSCALL = 5,
              ERROR_ZERO_RETURN = 6;
constexpr unsigned long LIBRARY_SHIFT = 23, LIBRARY_MASK = 0xff, LIBRARY_SSL = 20,
                        REASON_MASK = 0x7fffff, REASON_HTTP_REQUEST = 156,
                        REASON_HTTPS_PROXY_REQUEST = 155;
constexpr int ALPN_CHOSEN = 0, ALPN_IGNORED = 3;
constexpr size_t TICKET_KEYS = 80;  // the length of name, HMAC key and AES key together

}  // namespace openssl_value
}  // namespace ksrv
