# Safe without the GIL: rules are written only by the call that creates them.
# cython: freethreading_compatible = True
"""The header of the PROXY protocol, for Python and the tests."""

import ipaddress
import socket

cimport cython
from libc.string cimport memcpy

from native.http.proxy_header cimport (
    Network, ProxySource, ProxyVerdict, ProxyVersions, proxy_fault_text,
    read_proxy_header as read_header,
)

from ksrv._native.http.sockets cimport sockaddr_storage

if not cython.compiled:
    from collections.abc import Iterable

VERSIONS = ("off", "v1", "v2", "auto")


cdef ProxyVersions _versions(str name) except *:
    if name not in VERSIONS:
        raise ValueError(f"the PROXY protocol has the versions {', '.join(VERSIONS)}, not {name!r}")
    return <ProxyVersions>(<int>VERSIONS.index(name))


cdef class ProxyRules:
    """Rules for which connections begin with a header of the PROXY protocol.

    Args:
        versions: "v1", "v2", "auto" for both, or "off".
        trusted: Addresses and networks whose connections must begin with a header; "*" for all.
            Other connections must not have a header.

    Raises:
        ValueError: `versions` is unknown, or an entry of `trusted` is not an address or a network.
    """

    def __init__(self, str versions not None, trusted: Iterable[str] = ()):
        cdef Network network
        cdef bytes packed
        self.rules.versions = _versions(versions)
        for text in trusted:
            if text == "*":
                self.rules.trusts_all = True
                continue
            found = ipaddress.ip_network(text, strict=False)
            packed = found.network_address.packed
            network.bits = found.prefixlen
            if found.version == 4:  # stored as an IPv4-mapped IPv6 address
                packed = bytes(10) + b"\xff\xff" + packed
                network.bits += 96
            memcpy(network.address, <const char *>packed, 16)
            self.rules.trusted.push_back(network)

    def trusts(self, str address not None) -> bool:
        """Return whether connections from an IP address must begin with a header."""
        cdef sockaddr_storage peer
        cdef bytes packed
        cdef unsigned char *raw = <unsigned char *>&peer
        ipv6 = ":" in address
        peer.ss_family = socket.AF_INET6 if ipv6 else socket.AF_INET
        packed = socket.inet_pton(peer.ss_family, address)
        memcpy(raw + (8 if ipv6 else 4), <const char *>packed, len(packed))
        return bool(self.rules.trusts(peer))


def read_proxy_header(
    bytes data not None,
    str versions="auto",
) -> str | tuple[int, tuple[str, int] | None]:
    """Parse the first bytes of a connection.

    Args:
        data: The bytes received so far.
        versions: As for `ProxyRules`.

    Returns:
        "incomplete", "absent", or a sentence about the fault in the header. For a whole header, its
        length and the client's address: host and port, "::" and 0 if the client is unknown, or None
        if the proxy connects on its behalf (LOCAL).
    """
    cdef ProxySource source
    cdef ProxyVerdict verdict = read_header(data, len(data), _versions(versions), &source)
    cdef const unsigned char *raw = <const unsigned char *>&source.peer
    if verdict == ProxyVerdict.incomplete:
        return "incomplete"
    if verdict == ProxyVerdict.absent:
        return "absent"
    if verdict == ProxyVerdict.malformed:
        return (<bytes>proxy_fault_text(source.fault)).decode()
    if not source.names_client:
        return source.length, None
    if source.peer.ss_family == socket.AF_INET:
        return source.length, (socket.inet_ntop(socket.AF_INET, raw[4:8]), raw[2] << 8 | raw[3])
    return source.length, (socket.inet_ntop(socket.AF_INET6, raw[8:24]), raw[2] << 8 | raw[3])
