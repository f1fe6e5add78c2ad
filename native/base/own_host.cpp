// Compares the host of a Host field with the names of this machine, without looking names up.

#include "base/own_host.hpp"

#include <arpa/inet.h>
#include <strings.h>
#include <unistd.h>

#include <cstring>

namespace ksrv {

namespace {

constexpr const char *LOCAL_NAMES[] = {"localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback"};
constexpr size_t LONGEST_NAME = 255;  // RFC 1035 2.3.4
constexpr char BELOW_LOCALHOST[] = ".localhost";

// The name of this machine; empty if the system does not tell it.
struct OwnName {
    char text[LONGEST_NAME + 1] = {};

    OwnName() noexcept {
        if (gethostname(text, LONGEST_NAME) != 0) text[0] = 0;
    }
};

bool same(const char *name, size_t length, const char *other, size_t other_length) noexcept {
    return length == other_length && strncasecmp(name, other, length) == 0;
}

bool is_address(const char *name, int family) noexcept {
    unsigned char address[sizeof(in6_addr)];
    return inet_pton(family, name, address) == 1;
}

}  // namespace

bool is_own_host(const unsigned char *text, size_t length) noexcept {
    const char *name = reinterpret_cast<const char *>(text), *end = name + length;
    if (name == end) return true;
    const bool literal = *name == '[';  // an IPv6 address in brackets, perhaps with a zone such as %eth0
    if (literal) {
        ++name;
        const void *closed = memchr(name, ']', static_cast<size_t>(end - name));
        if (!closed) return false;
        end = static_cast<const char *>(closed);
        if (const void *zone = memchr(name, '%', static_cast<size_t>(end - name))) end = static_cast<const char *>(zone);
    } else {
        if (const void *colon = memchr(name, ':', length)) end = static_cast<const char *>(colon);
        if (end > name && end[-1] == '.') --end;  // a fully qualified name
    }
    const size_t size = static_cast<size_t>(end - name);
    if (size == 0) return !literal;
    if (size > LONGEST_NAME) return false;
    char copy[LONGEST_NAME + 1];
    memcpy(copy, name, size);
    copy[size] = 0;
    if (literal) return is_address(copy, AF_INET6);
    if (is_address(copy, AF_INET)) return true;
    for (const char *own : LOCAL_NAMES)
        if (same(copy, size, own, strlen(own))) return true;
    const size_t below = sizeof BELOW_LOCALHOST - 1;
    if (size > below && same(copy + size - below, below, BELOW_LOCALHOST, below)) return true;
    static const OwnName own;  // compared as a whole, and up to its first dot
    const char *const dot = strchr(own.text, '.');
    const size_t whole = strlen(own.text), first = dot ? static_cast<size_t>(dot - own.text) : whole;
    return same(copy, size, own.text, whole) || same(copy, size, own.text, first);
}

bool is_foreign_host(const unsigned char *text, size_t length) noexcept {
    const char *const name = reinterpret_cast<const char *>(text);
    const size_t last = length && name[length - 1] == '.';  // a fully qualified name
    return memchr(name, '.', length - last) && !is_own_host(text, length);
}

}  // namespace ksrv
