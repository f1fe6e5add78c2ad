// The header of the PROXY protocol, versions 1 and 2, which a proxy sends before the first byte of HTTP or TLS to name
// its client (https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt; comments refer to its sections).
//
// Strategy: a trusted peer must begin with a header, because the receiver must not guess whether a header is present
// (section 2). Other peers must not begin with a header, because they could choose their address. The result never
// depends on how reads split the bytes.

#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ksrv {

// The longest line of version 1, including its CRLF (section 2.1).
constexpr size_t PROXY_LINE_MOST = 107;
// Lengths in version 2: of the signature, and of the fixed part, which begins with the signature.
constexpr size_t PROXY_SIGNATURE_BYTES = 12, PROXY_V2_HEAD_BYTES = 16;
// The longest accepted header of version 2: addresses and type-length-values. Senders write shorter headers, which fit
// one TCP segment (section 2.2).
constexpr size_t PROXY_HEADER_MOST = 4096;

enum class ProxyVersions : uint8_t { off = 0, v1 = 1, v2 = 2, both = 3 };

// Addresses with the same first bits. IPv4 addresses are stored as IPv4-mapped IPv6 addresses.
struct Network {
    unsigned char address[16];
    unsigned bits;
};

struct ProxyRules {
    ProxyVersions versions = ProxyVersions::off;
    bool trusts_all = false;
    std::vector<Network> trusted;

    // Whether a peer may name its client. A peer on a unix socket may, because the socket's mode limits who can
    // connect.
    bool trusts(const sockaddr_storage &peer) const noexcept;
};

enum class ProxyVerdict : uint8_t {
    incomplete,  // all bytes so far may belong to a header
    whole,
    absent,      // the bytes are not a header of the accepted versions
    malformed,
};

struct ProxySource {
    size_t length = 0;   // of the complete header
    bool names_client = false;  // `peer` is the proxy's client, "::" if unknown; else the proxy connects itself
    sockaddr_storage peer{};
    const char *fault = nullptr;  // a sentence about a malformed header
};

// Parses the first bytes of a connection.
ProxyVerdict read_proxy_header(const unsigned char *data, size_t filled, ProxyVersions accepted,
                               ProxySource *source) noexcept;

}  // namespace ksrv
