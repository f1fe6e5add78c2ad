# Safe without the GIL: rules are written only by the call that creates them.
# cython: freethreading_compatible = True
"""Which connections begin with a header of the PROXY protocol."""

import ipaddress

cimport cython
from libc.string cimport memcpy

from native.http.proxy_header cimport Network, ProxyVersions

if not cython.compiled:
    from collections.abc import Iterable

VERSIONS = ("off", "v1", "v2", "auto")


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
        if versions not in VERSIONS:
            raise ValueError(
                f"the PROXY protocol has the versions {', '.join(VERSIONS)}, not {versions!r}"
            )
        self.rules.versions = <ProxyVersions>(<int>VERSIONS.index(versions))
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
