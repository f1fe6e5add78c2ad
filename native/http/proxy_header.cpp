// Version 1 is a line of text (`read_line`), version 2 is binary (`read_binary`). `read_proxy_header` at the end
// chooses.

#include "http/proxy_header.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>

namespace ksrv {

namespace {

constexpr unsigned char SIGNATURE[PROXY_SIGNATURE_BYTES + 1] = "\r\n\r\n\0\r\nQUIT\n";
constexpr char WORD[] = "PROXY ";
constexpr size_t WORD_LENGTH = sizeof WORD - 1;
constexpr char BAD_LINE[] = "the header's line is not PROXY, a protocol, two addresses and two ports";
constexpr char BAD_LINE_END[] = "the header's line does not end with CR LF within 107 bytes";
constexpr char BAD_PROTOCOL[] = "the header names another protocol than TCP over IPv4 or IPv6";
// The first bytes of an IPv4-mapped IPv6 address.
constexpr unsigned char MAPPED[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

bool accepts(ProxyVersions accepted, ProxyVersions version) noexcept {
    return (static_cast<uint8_t>(accepted) & static_cast<uint8_t>(version)) != 0;
}

ProxyVerdict refuse(ProxySource *source, const char *fault) noexcept {
    source->fault = fault;
    source->length = 0;  // only set for a complete header
    return ProxyVerdict::malformed;
}

void set_peer(ProxySource *source, int family, const void *address, uint16_t port) noexcept {
    source->names_client = true;
    source->peer.ss_family = static_cast<sa_family_t>(family);
    if (family == AF_INET) {
        auto &peer = reinterpret_cast<sockaddr_in &>(source->peer);
        peer.sin_port = htons(port);
        memcpy(&peer.sin_addr, address, sizeof peer.sin_addr);
    } else {
        auto &peer = reinterpret_cast<sockaddr_in6 &>(source->peer);
        peer.sin6_port = htons(port);
        memcpy(&peer.sin6_addr, address, sizeof peer.sin6_addr);
    }
}

// For a header without the client's address: uses "::", the unspecified address (RFC 4291 2.5.2). The proxy's address
// would be wrong, because the client would count as local if the proxy runs on this machine.
void set_unknown_peer(ProxySource *source) noexcept {
    const unsigned char unspecified[16] = {};
    set_peer(source, AF_INET6, unspecified, 0);
}

struct Word {
    const char *text;
    size_t length;

    bool is(const char *other) const noexcept {
        return strlen(other) == length && memcmp(text, other, length) == 0;
    }
};

// An address in the form of inet_pton().
bool read_address(const Word &word, int family, unsigned char *address) noexcept {
    char text[INET6_ADDRSTRLEN];
    if (word.length >= sizeof text || memchr(word.text, 0, word.length)) return false;
    memcpy(text, word.text, word.length);
    text[word.length] = 0;
    return inet_pton(family, text, address) == 1;
}

// "0" to "65535", without leading zeros (section 2.1).
bool read_port(const Word &word, uint16_t *port) noexcept {
    if (word.length == 0 || word.length > 5 || (word.length > 1 && word.text[0] == '0')) return false;
    uint32_t sum = 0;
    for (size_t i = 0; i < word.length; ++i) {
        if (word.text[i] < '0' || word.text[i] > '9') return false;
        sum = sum * 10 + static_cast<uint32_t>(word.text[i] - '0');
    }
    *port = static_cast<uint16_t>(sum);
    return sum <= 65535;
}

ProxyVerdict read_line(const unsigned char *data, size_t filled, ProxySource *source) noexcept {
    const size_t room = std::min(filled, PROXY_LINE_MOST);
    const void *feed = memchr(data, '\n', room);
    if (!feed)
        return filled < PROXY_LINE_MOST ? ProxyVerdict::incomplete : refuse(source, BAD_LINE_END);
    const size_t length = static_cast<size_t>(static_cast<const unsigned char *>(feed) - data) + 1;
    if (data[length - 2] != '\r') return refuse(source, BAD_LINE_END);
    source->length = length;

    Word words[5];  // protocol, two addresses, two ports, separated by single blanks
    const char *at = reinterpret_cast<const char *>(data) + WORD_LENGTH;
    const char *const end = reinterpret_cast<const char *>(data) + length - 2;
    size_t count = 0;
    for (;;) {
        const void *blank = memchr(at, ' ', static_cast<size_t>(end - at));
        const char *const stop = blank ? static_cast<const char *>(blank) : end;
        words[count++] = {at, static_cast<size_t>(stop - at)};
        // Everything after UNKNOWN is ignored (section 2.1).
        if (count == 1 && words[0].is("UNKNOWN")) {
            set_unknown_peer(source);
            return ProxyVerdict::whole;
        }
        if (!blank) break;
        if (count == 5) return refuse(source, BAD_LINE);
        at = stop + 1;
    }
    const bool ipv4 = words[0].is("TCP4");
    if (!ipv4 && !words[0].is("TCP6")) return refuse(source, BAD_PROTOCOL);
    if (count != 5) return refuse(source, BAD_LINE);
    const int family = ipv4 ? AF_INET : AF_INET6;
    unsigned char from[16], to[16];
    if (!read_address(words[1], family, from) || !read_address(words[2], family, to))
        return refuse(source, "the header has an address that does not match its protocol");
    uint16_t port = 0, to_port = 0;
    if (!read_port(words[3], &port) || !read_port(words[4], &to_port))
        return refuse(source, "the header has a port that is not a number from 0 to 65535");
    set_peer(source, family, from, port);
    return ProxyVerdict::whole;
}

ProxyVerdict read_binary(const unsigned char *data, size_t filled, ProxySource *source) noexcept {
    if (filled < PROXY_V2_HEAD_BYTES) return ProxyVerdict::incomplete;
    const unsigned version = data[12] >> 4, command = data[12] & 15u;
    const unsigned family = data[13] >> 4, protocol = data[13] & 15u;
    const size_t length = static_cast<size_t>(data[14]) << 8 | data[15];
    if (version != 2) return refuse(source, "the header's version is not 2");
    if (command > 1) return refuse(source, "the header's command is neither LOCAL nor PROXY");
    if (PROXY_V2_HEAD_BYTES + length > PROXY_HEADER_MOST) return refuse(source, "the header is longer than 4096 bytes");
    const bool names_client = command == 1;           // otherwise LOCAL: the connection is the proxy's
    const bool known = family != 0 || protocol != 0;  // otherwise UNSPEC
    if (names_client && known) {
        if (family == 0 || family > 3 || protocol != 1) return refuse(source, BAD_PROTOCOL);
        const size_t needed = family == 1 ? 12u : family == 2 ? 36u : 216u;  // IPv4, IPv6, unix (section 2.2)
        if (length < needed) return refuse(source, "the header is too short for the addresses of its protocol");
    }
    if (filled < PROXY_V2_HEAD_BYTES + length) return ProxyVerdict::incomplete;
    source->length = PROXY_V2_HEAD_BYTES + length;
    if (!names_client) return ProxyVerdict::whole;
    const unsigned char *const block = data + PROXY_V2_HEAD_BYTES;
    if (!known || family == 3) {
        set_unknown_peer(source);  // a client on a unix socket has no address either
    } else if (family == 1) {
        set_peer(source, AF_INET, block, static_cast<uint16_t>(block[8] << 8 | block[9]));
    } else {
        set_peer(source, AF_INET6, block, static_cast<uint16_t>(block[32] << 8 | block[33]));
    }
    return ProxyVerdict::whole;
}

}  // namespace

bool ProxyRules::trusts(const sockaddr_storage &peer) const noexcept {
    if (trusts_all || (peer.ss_family != AF_INET && peer.ss_family != AF_INET6)) return true;
    unsigned char address[16];
    if (peer.ss_family == AF_INET) {
        memcpy(address, MAPPED, sizeof MAPPED);
        memcpy(address + sizeof MAPPED, &reinterpret_cast<const sockaddr_in &>(peer).sin_addr, 4);
    } else {
        memcpy(address, &reinterpret_cast<const sockaddr_in6 &>(peer).sin6_addr, 16);
    }
    for (const Network &network : trusted) {
        const unsigned bytes = network.bits / 8, rest = network.bits % 8;
        if (memcmp(address, network.address, bytes) != 0) continue;
        const unsigned mask = 0xff00u >> rest & 0xffu;
        if (rest == 0 || ((address[bytes] ^ network.address[bytes]) & mask) == 0) return true;
    }
    return false;
}

ProxyVerdict read_proxy_header(const unsigned char *data, size_t filled, ProxyVersions accepted,
                               ProxySource *source) noexcept {
    *source = ProxySource{};
    if (filled == 0) return ProxyVerdict::incomplete;
    if (accepts(accepted, ProxyVersions::v2) &&
        memcmp(data, SIGNATURE, std::min(filled, PROXY_SIGNATURE_BYTES)) == 0)
        return filled < PROXY_SIGNATURE_BYTES ? ProxyVerdict::incomplete : read_binary(data, filled, source);
    if (accepts(accepted, ProxyVersions::v1) && memcmp(data, WORD, std::min(filled, WORD_LENGTH)) == 0)
        return filled < WORD_LENGTH ? ProxyVerdict::incomplete : read_line(data, filled, source);
    return ProxyVerdict::absent;
}

}  // namespace ksrv
