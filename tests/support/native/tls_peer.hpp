// A client of TLS for programs over the server's side. OpenSSL shakes hands; later records are made here, of any
// type and content, with the keys that OpenSSL logs (RFC 8446 5.2, 7.1 to 7.3; RFC 5246 6.3; RFC 5288).

#pragma once

#include <dlfcn.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "tls/openssl.hpp"

enum RecordType : unsigned char { RECORD_CIPHER_CHANGE = 20, RECORD_ALERT, RECORD_HANDSHAKE, RECORD_DATA };

template <typename Function> Function *from_library(const char *name) {
    static void *const library = dlopen("libssl.so.3", RTLD_NOW);
    auto *found = reinterpret_cast<Function *>(dlsym(library, name));
    if (!found) std::abort();
    return found;
}

// For clients of one version of TLS.
inline SSL_CTX *client_rules(int version) {
    SSL_CTX *made = ksrv::openssl.SSL_CTX_new(from_library<const SSL_METHOD *()>("TLS_client_method")());
    for (int which : {ksrv::openssl_value::CTRL_LEAST_VERSION, ksrv::openssl_value::CTRL_MOST_VERSION})
        ksrv::openssl.SSL_CTX_ctrl(made, which, version, nullptr);
    return made;
}

class TlsPeer {
  public:
    // Over a socket that blocks. `version` is that of the wire: 0x0303 or 0x0304.
    explicit TlsPeer(int fd, int version = 0x0304, const char *alpn = nullptr) : fd_(fd), version_(version) {
        SSL_CTX *context = shared(version);
        ssl_ = ksrv::openssl.SSL_new(context);
        if (alpn) {
            const std::string offer = static_cast<char>(strlen(alpn)) + std::string(alpn);
            from_library<int(SSL *, const char *, unsigned)>("SSL_set_alpn_protos")(
                ssl_, offer.data(), static_cast<unsigned>(offer.size()));
        }
        ksrv::openssl.SSL_set_fd(ssl_, fd);
        from_library<void(SSL *)>("SSL_set_connect_state")(ssl_);
    }
    TlsPeer(const TlsPeer &) = delete;
    TlsPeer &operator=(const TlsPeer &) = delete;
    ~TlsPeer() {
        ksrv::openssl.SSL_free(ssl_);
        close(fd_);
    }

    // Lets the handshake take a step; true when it is done. The socket need not block.
    bool shake_hands() {
        ksrv::openssl.ERR_clear_error();
        log().clear();
        const int done = ksrv::openssl.SSL_do_handshake(ssl_);
        secrets_ += log();
        if (done == 1) version_ == 0x0304 ? begin_1_3() : begin_1_2();
        return done == 1;
    }

    // One record as it is on the wire. Its content has at most 2^14 bytes.
    std::string record(unsigned char type, const std::string &content) {
        std::string plain = content, nonce = iv_, explicit_nonce;
        std::string head{version_ == 0x0304 ? static_cast<char>(RECORD_DATA) : static_cast<char>(type), 3, 3};
        if (version_ == 0x0304) {
            plain += static_cast<char>(type);
            for (int i = 0; i < 8; ++i) nonce[4 + static_cast<size_t>(i)] ^= static_cast<char>(sequence_ >> (56 - 8 * i));
        } else {
            for (int i = 0; i < 8; ++i) explicit_nonce += static_cast<char>(sequence_ >> (56 - 8 * i));
            nonce += explicit_nonce;
        }
        std::string extra = head + number16(plain.size() + 16);
        if (version_ != 0x0304) extra = explicit_nonce + head + number16(plain.size());
        ++sequence_;
        return head + number16(explicit_nonce.size() + plain.size() + 16) + explicit_nonce + sealed(plain, nonce, extra);
    }

    std::string data(const std::string &content) { return record(RECORD_DATA, content); }

    // A KeyUpdate of TLS 1.3, after which this side's keys are new.
    std::string key_update(bool answered = false) {
        const std::string made = record(RECORD_HANDSHAKE, std::string("\x18\0\0\1", 4) + (answered ? '\1' : '\0'));
        secret_ = expanded(secret_, "traffic upd", 32);
        use_secret();
        return made;
    }

    void send_all(const std::string &records) const {
        for (size_t at = 0; at < records.size();) {
            const ssize_t sent = send(fd_, records.data() + at, records.size() - at, MSG_NOSIGNAL);
            if (sent <= 0) return;  // the server has closed
            at += static_cast<size_t>(sent);
        }
    }

    // Application data of the server; empty if the socket would wait, or at the end.
    std::string read() {
        char room[16384];
        ksrv::openssl.ERR_clear_error();
        const int got = ksrv::openssl.SSL_read(ssl_, room, sizeof room);
        return {room, got > 0 ? static_cast<size_t>(got) : 0};
    }

    // Whether these bytes come before the server closes.
    bool reads(const std::string &wanted) {
        while (unread_.find(wanted) == std::string::npos) {
            const std::string more = read();
            if (more.empty()) return false;
            unread_ += more;
        }
        unread_.erase(0, unread_.find(wanted) + wanted.size());
        return true;
    }

  private:
    static std::string &log() {
        static thread_local std::string text;
        return text;
    }

    static SSL_CTX *shared(int version) {
        static SSL_CTX *made[2] = {};
        SSL_CTX *&context = made[version == 0x0304];
        if (context) return context;
        context = client_rules(version);
        from_library<int(SSL_CTX *, const char *)>("SSL_CTX_set_ciphersuites")(context, "TLS_AES_128_GCM_SHA256");
        ksrv::openssl.SSL_CTX_set_cipher_list(context, "ECDHE-RSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES128-GCM-SHA256");
        from_library<void(SSL_CTX *, void (*)(const SSL *, const char *))>("SSL_CTX_set_keylog_callback")(
            context, [](const SSL *, const char *line) { log() += line + std::string("\n"); });
        return context;
    }

    // The secret in a line of OpenSSL's key log: its label, the client's random bytes, the secret.
    std::string secret(const std::string &label) const {
        const size_t line = secrets_.find(label + " ");
        if (line == std::string::npos) std::abort();
        const size_t at = secrets_.find(' ', line + label.size() + 1) + 1, end = secrets_.find('\n', at);
        std::string made;
        for (size_t i = at; i < end; i += 2)
            made += static_cast<char>(std::stoi(secrets_.substr(i, 2), nullptr, 16));
        return made;
    }

    void begin_1_3() {
        secret_ = secret("CLIENT_TRAFFIC_SECRET_0");
        use_secret();
    }

    void use_secret() {
        key_ = expanded(secret_, "key", 16);
        iv_ = expanded(secret_, "iv", 12);
        sequence_ = 0;
    }

    void begin_1_2() {
        std::string seed = "key expansion" + random("SSL_get_server_random") + random("SSL_get_client_random");
        const std::string master = secret("CLIENT_RANDOM");
        std::string keys, a = seed;
        while (keys.size() < 40) {
            a = hmac(master, a);
            keys += hmac(master, a + seed);
        }
        key_ = keys.substr(0, 16);
        iv_ = keys.substr(32, 4);
        sequence_ = 1;  // Finished was the first
    }

    std::string random(const char *function) const {
        std::string made(32, '\0');
        from_library<size_t(const SSL *, unsigned char *, size_t)>(function)(
            ssl_, reinterpret_cast<unsigned char *>(&made[0]), made.size());
        return made;
    }

    static std::string number16(size_t value) {
        return {static_cast<char>(value >> 8), static_cast<char>(value)};
    }

    static std::string hmac(const std::string &key, const std::string &text) {
        std::string made(32, '\0');
        unsigned length = 0;
        from_library<unsigned char *(const void *, const void *, int, const unsigned char *, size_t, unsigned char *,
                                     unsigned *)>("HMAC")(
            from_library<const void *()>("EVP_sha256")(), key.data(), static_cast<int>(key.size()),
            reinterpret_cast<const unsigned char *>(text.data()), text.size(),
            reinterpret_cast<unsigned char *>(&made[0]), &length);
        return made;
    }

    // HKDF-Expand-Label without a context, for at most 32 bytes.
    static std::string expanded(const std::string &secret, const std::string &label, size_t length) {
        const std::string full = "tls13 " + label;
        return hmac(secret, number16(length) + static_cast<char>(full.size()) + full + std::string("\0\1", 2))
            .substr(0, length);
    }

    std::string sealed(const std::string &plain, const std::string &nonce, const std::string &extra) const {
        static auto *const update =
            from_library<int(void *, unsigned char *, int *, const unsigned char *, int)>("EVP_EncryptUpdate");
        const auto bytes = [](const std::string &text) { return reinterpret_cast<const unsigned char *>(text.data()); };
        std::string made(plain.size() + 16, '\0');
        auto *out = reinterpret_cast<unsigned char *>(&made[0]);
        int length = 0;
        void *cipher = from_library<void *()>("EVP_CIPHER_CTX_new")();
        from_library<int(void *, const void *, void *, const unsigned char *, const unsigned char *)>(
            "EVP_EncryptInit_ex")(cipher, from_library<const void *()>("EVP_aes_128_gcm")(), nullptr, bytes(key_),
                                  bytes(nonce));
        update(cipher, nullptr, &length, bytes(extra), static_cast<int>(extra.size()));
        update(cipher, out, &length, bytes(plain), static_cast<int>(plain.size()));
        from_library<int(void *, unsigned char *, int *)>("EVP_EncryptFinal_ex")(cipher, out + plain.size(), &length);
        constexpr int GET_TAG = 0x10;
        from_library<int(void *, int, int, void *)>("EVP_CIPHER_CTX_ctrl")(cipher, GET_TAG, 16, out + plain.size());
        from_library<void(void *)>("EVP_CIPHER_CTX_free")(cipher);
        return made;
    }

    const int fd_, version_;
    SSL *ssl_ = nullptr;
    std::string secrets_, secret_, key_, iv_, unread_;
    uint64_t sequence_ = 0;
};
