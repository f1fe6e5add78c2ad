// Which hosts a web page can only name if it runs on this machine. Its owner may point any other name at this machine (DNS
// rebinding). Hosts are values of Host or :authority in the form that is_host asks for; their port is ignored.

#pragma once

#include <cstddef>

namespace ksrv {

// Whether a host is empty, an IP address, or a name that only this machine resolves: localhost, a name below it, or the
// machine's own host name.
bool is_own_host(const unsigned char *text, size_t length) noexcept;

// Whether a stranger can point a host at this machine: it is not its own, and has a dot. A name without a dot is resolved
// by /etc/hosts, by Docker or by a local network, and an upstream of nginx has one; nobody can register it.
bool is_foreign_host(const unsigned char *text, size_t length) noexcept;

}  // namespace ksrv
