"""The caller, for the logs: the digest of the token, and the address as seen by the proxies of `--forwarded-allow-ips`.

Each proxy appends its caller's address to `X-Forwarded-For` or `Forwarded` (RFC 7239), so the last entry is
the only one that a trusted proxy has certainly written. The entries are read from there, up to the first address that
is not a trusted proxy itself.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any

from ksrv.server.settings import ServerSettings, SettingsError

UNIX = "unix"
"""The word for all unix sockets in `--forwarded-allow-ips`."""

SHOWN_DIGITS = 8
"""Hexadecimal digits of a token's digest that the logs show."""

MOST_FORWARDED = 4096
"""Characters of `Forwarded` that are read, from the right."""

_KEYS = {"HTTP_X_FORWARDED_FOR": "x-forwarded-for", "HTTP_FORWARDED": "forwarded"}
_ELEMENT = re.compile(r'(?:[^,"]|"(?:[^"\\]|\\.)*")+')
_FOR = re.compile(r'(?:^|;)\s*for\s*=\s*("(?:[^"\\]|\\.)*"|[^\s;]+)', re.IGNORECASE)


class TrustedProxies:
    """The proxies that may name their caller in `X-Forwarded-For` or `Forwarded`.

    Args:
        addresses: Addresses, networks, "unix", or "*" for all.

    Raises:
        ValueError: An entry has another form.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        self._all = "*" in addresses
        self._unix = self._all or UNIX in addresses
        named = (entry for entry in addresses if entry not in ("*", UNIX))
        self._networks: list[IPv4Network | IPv6Network] = [
            ip_network(entry, strict=False) for entry in named
        ]

    @classmethod
    def of(cls, settings: ServerSettings) -> "TrustedProxies":
        """Return the proxies that the settings name.

        Raises:
            SettingsError: An entry is not an address.
        """
        try:
            return cls(settings.forwarded_allow_ips)
        except ValueError as error:
            raise SettingsError(
                f"setting 'forwarded_allow_ips': expected addresses, networks such as 10.0.0.0/8, unix, or *: {error}"
            ) from None

    def trust(self, peer: str) -> bool:
        """Tell whether the peer of a connection is a trusted proxy.

        Args:
            peer: The peer's IP address; "" for a unix socket.
        """
        if not peer:
            return self._unix
        if self._all:
            return True
        address = ip_address(peer.partition("%")[0])
        mapped = getattr(address, "ipv4_mapped", None) or address
        return any(mapped in network for network in self._networks)

    def caller(self, peer: str, headers: Mapping[str, str]) -> dict[str, str]:
        """Return the fields of a log record that say who called: `peer`, and `proxy` if a trusted proxy forwards the call.

        Args:
            peer: The peer's IP address; "" for a unix socket.
            headers: The request's headers or metadata, names in lower case.
        """
        client = self._client_of(peer, headers)
        return {"peer": client} | ({} if client == peer else {"proxy": peer or UNIX})

    def caller_of(self, environ: Mapping[str, Any]) -> dict[str, str]:
        """Return the fields of `caller` for a WSGI request."""
        given = {name: environ[key] for key, name in _KEYS.items() if key in environ}
        return self.caller(environ.get("REMOTE_ADDR", ""), given)

    def _client_of(self, peer: str, headers: Mapping[str, str]) -> str:
        client = peer
        if self.trust(peer):
            for hop in _hops(headers):
                address = _address(hop)
                if not address:
                    break
                client = address
                if not self.trust(client):
                    break
        return client


def _hops(headers: Mapping[str, str]) -> Iterator[str]:
    """Yield the entries that proxies have written for their callers, the last entry first."""
    if "x-forwarded-for" in headers:
        yield from reversed(headers["x-forwarded-for"].split(","))
        return
    for element in reversed(_ELEMENT.findall(headers.get("forwarded", "")[-MOST_FORWARDED:])):
        found = _FOR.search(element)
        yield found[1].strip('"') if found else ""


def _address(hop: str) -> str:
    """Return the IP address in an entry, which may have a port; "" for any other entry."""
    text = hop.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        return str(ip_address(text.partition("%")[0]))
    except ValueError:
        return ""


def token_digest(authorization: str | None) -> str:
    """Return the beginning of the digest of a bearer token; "" without a token."""
    scheme, _, token = (authorization or "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        return ""
    digest = hashlib.sha256(token.strip().encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:SHOWN_DIGITS]
