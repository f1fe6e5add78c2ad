// Which values of Host (or :authority) prove that a web page runs on this machine. For any other name, its owner can
// make the name resolve to this machine (DNS rebinding). Values must pass is_host; the port is ignored.

#pragma once

#include <cstddef>

namespace ksrv {

// Whether a host is empty, an IP address, or a name that only this machine resolves: localhost, its subdomains, and the
// machine's host name.
bool is_own_host(const unsigned char *text, size_t length) noexcept;

// Whether a stranger can make a host resolve to this machine: it has a dot and is not a name of this machine. A name
// without a dot is resolved by /etc/hosts, by Docker or by a local network (an upstream of nginx has such a name), and
// nobody can register it.
bool is_foreign_host(const unsigned char *text, size_t length) noexcept;

}  // namespace ksrv
