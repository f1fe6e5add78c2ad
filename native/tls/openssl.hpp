// The functions of OpenSSL that TLS needs, loaded from the system's library on first use.
//
// The functions are declared here and loaded at run time, never linked. So one build serves with TLS if OpenSSL is
// installed and without TLS otherwise, needs no headers, and uses the library that the system keeps up to date. If
// Python's ssl module has loaded the library already, this is the same copy.
// tests/unit/native/tls/openssl_declarations.cpp compares the declarations with OpenSSL's headers.

#pragma once

#include <cstddef>
#include <cstdint>

typedef struct ssl_st SSL;
typedef struct ssl_ctx_st SSL_CTX;
typedef struct ssl_method_st SSL_METHOD;
typedef struct X509_VERIFY_PARAM_st X509_VERIFY_PARAM;
typedef struct x509_store_ctx_st X509_STORE_CTX;
typedef struct x509_st X509;
typedef struct asn1_string_st ASN1_TIME;
typedef struct ssl_session_st SSL_SESSION;
typedef struct X509_name_st X509_NAME;
typedef struct evp_cipher_st EVP_CIPHER;
typedef struct evp_cipher_ctx_st EVP_CIPHER_CTX;
typedef struct evp_mac_ctx_st EVP_MAC_CTX;
typedef struct engine_st ENGINE;
typedef struct ossl_param_st OSSL_PARAM;
typedef struct stack_st OPENSSL_STACK;
struct stack_st_X509_NAME;

namespace ksrv {

// The types of OpenSSL's callbacks.
using AlpnSelect = int (*)(SSL *, const unsigned char **, unsigned char *, const unsigned char *,
                           unsigned int, void *);
using AskForPassword = int (*)(char *, int, int, void *);
using VerifyCertificate = int (*)(int, X509_STORE_CTX *);
using SeeMessage = void (*)(int, int, int, const void *, size_t, SSL *, void *);
using JudgeTicket = int (*)(SSL *, SSL_SESSION *, const unsigned char *, size_t, int, void *);
using FillTicket = int (*)(SSL *, void *);
using UseTicketKey = int (*)(SSL *, unsigned char *, unsigned char *, EVP_CIPHER_CTX *, EVP_MAC_CTX *, int);

// Result, name, arguments.
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
    F(void, SSL_CTX_set_msg_callback, (SSL_CTX *, SeeMessage))                                       \
    F(int, SSL_CTX_set_tlsext_ticket_key_evp_cb, (SSL_CTX *, UseTicketKey))                          \
    F(int, SSL_CTX_set_session_ticket_cb, (SSL_CTX *, FillTicket, JudgeTicket, void *))              \
    F(X509 *, SSL_SESSION_get0_peer, (SSL_SESSION *))                                                \
    F(const ASN1_TIME *, X509_get0_notAfter, (const X509 *))                                         \
    F(int, X509_cmp_current_time, (const ASN1_TIME *))                                               \
    F(long, SSL_CTX_set_timeout, (SSL_CTX *, long))                                                  \
    F(int, SSL_CTX_set_ex_data, (SSL_CTX *, int, void *))                                            \
    F(void *, SSL_CTX_get_ex_data, (const SSL_CTX *, int))                                           \
    F(SSL_CTX *, SSL_get_SSL_CTX, (const SSL *))                                                     \
    F(stack_st_X509_NAME *, SSL_load_client_CA_file, (const char *))                                 \
    F(void, SSL_CTX_set_client_CA_list, (SSL_CTX *, stack_st_X509_NAME *))                           \
    F(SSL *, SSL_new, (SSL_CTX *))                                                                   \
    F(long, SSL_ctrl, (SSL *, int, long, void *))                                                    \
    F(void, SSL_free, (SSL *))                                                                       \
    F(int, SSL_set_fd, (SSL *, int))                                                                 \
    F(void, SSL_set_accept_state, (SSL *))                                                           \
    F(int, SSL_do_handshake, (SSL *))                                                                \
    F(int, SSL_read, (SSL *, void *, int))                                                           \
    F(int, SSL_write, (SSL *, const void *, int))                                                    \
    F(int, SSL_shutdown, (SSL *))                                                                    \
    F(void, SSL_set_shutdown, (SSL *, int))                                                          \
    F(int, SSL_has_pending, (const SSL *))                                                           \
    F(int, SSL_get_error, (const SSL *, int))                                                        \
    F(int, SSL_session_reused, (const SSL *))                                                        \
    F(int, X509_VERIFY_PARAM_set_flags, (X509_VERIFY_PARAM *, unsigned long))                        \
    F(int, OPENSSL_sk_num, (const OPENSSL_STACK *))                                                  \
    F(void *, OPENSSL_sk_value, (const OPENSSL_STACK *, int))                                        \
    F(int, i2d_X509_NAME, (const X509_NAME *, unsigned char **))                                     \
    F(const EVP_CIPHER *, EVP_aes_256_cbc, ())                                                       \
    F(int, EVP_CipherInit_ex, (EVP_CIPHER_CTX *, const EVP_CIPHER *, ENGINE *, const unsigned char *,\
                               const unsigned char *, int))                                          \
    F(int, EVP_MAC_CTX_set_params, (EVP_MAC_CTX *, const OSSL_PARAM *))                              \
    F(int, RAND_bytes, (unsigned char *, int))                                                       \
    F(void, ERR_clear_error, ())                                                                     \
    F(unsigned long, ERR_peek_error, ())                                                             \
    F(void, ERR_error_string_n, (unsigned long, char *, size_t))                                     \
    F(const char *, OpenSSL_version, (int))

struct OpenSsl {
#define KSRV_DECLARE(result, name, arguments) result(*name) arguments = nullptr;
    KSRV_OPENSSL_FUNCTIONS(KSRV_DECLARE)
#undef KSRV_DECLARE
};

// Empty until `load_openssl` has succeeded.
extern OpenSsl openssl;

// Loads the functions once. Returns null, or a sentence with the reason of the failure.
const char *load_openssl() noexcept;

// The values of OpenSSL's macros.
namespace openssl_value {

constexpr int FILE_PEM = 1;
constexpr int CTRL_SEE_MESSAGE_ARGUMENT = 16, CTRL_MODE = 33, CTRL_READ_AHEAD = 41, CTRL_SESSION_CACHE = 44,
              CTRL_LEAST_VERSION = 123, CTRL_MOST_VERSION = 124;
constexpr long MODE_PARTIAL_WRITE = 1, MODE_MOVING_WRITE_BUFFER = 2, MODE_RELEASE_BUFFERS = 16;
constexpr long SESSION_CACHE_OFF = 0;
constexpr uint64_t OPTION_KTLS = 1u << 3, OPTION_IGNORE_UNEXPECTED_EOF = 1u << 7,
                   OPTION_NO_COMPRESSION = 1u << 17, OPTION_SERVER_PREFERENCE = 1u << 22,
                   OPTION_NO_RENEGOTIATION = 1u << 30;
constexpr int VERIFY_PEER = 1, VERIFY_FAIL_WITHOUT = 2;
constexpr int ERROR_SSL = 1, ERROR_WANT_READ = 2, ERROR_WANT_WRITE = 3, ERROR_SYSCALL = 5, ERROR_ZERO_RETURN = 6;
constexpr unsigned long LIBRARY_SHIFT = 23, LIBRARY_MASK = 0xff, LIBRARY_SSL = 20,
                        REASON_MASK = 0x7fffff, REASON_HTTP_REQUEST = 156,
                        REASON_HTTPS_PROXY_REQUEST = 155;
constexpr int ALPN_CHOSEN = 0, ALPN_IGNORED = 3;
constexpr int RECORD_HEADER = 256, RECEIVED_SHUTDOWN = 2;
constexpr int APP_DATA = 0;  // index of SSL_CTX_set_ex_data for application data
constexpr int TICKET_KEY_NAME = 16, TICKET_IV = 16;
constexpr int TICKET_SUCCESS = 5, TICKET_SUCCESS_RENEW = 6;
constexpr int TICKET_IGNORE_RENEW = 2, TICKET_USE = 3, TICKET_USE_RENEW = 4;
constexpr unsigned PARAM_UTF8_STRING = 4, PARAM_OCTET_STRING = 5;
constexpr const char *MAC_KEY = "key", *MAC_DIGEST = "digest";

// OSSL_PARAM, under another name because OpenSSL's headers define that name.
struct Param {
    const char *key;
    unsigned data_type;
    void *data;
    size_t data_size, return_size;
};

}  // namespace openssl_value
}  // namespace ksrv
