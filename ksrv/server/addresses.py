"""The addresses on which the server listens: parsing, and checks that they are free and not exposed to strangers."""

import errno
import ipaddress
import os
import re
import socket
from dataclasses import dataclass
from pathlib import Path

SOCKET_PATH_BYTES = 107
"""The longest path of a unix socket: Linux's `sun_path` has 108 bytes, including the final NUL (unix(7))."""

_PORT = re.compile(r"[0-9]{1,5}")


class AddressError(ValueError):
    """An address is not written as HOST:PORT or unix:PATH, or may not be listened on."""


@dataclass(frozen=True)
class Address:
    """A TCP address or unix socket to listen on.

    Attributes:
        host: Host name or IP address without brackets; "" for a unix socket.
        port: TCP port; 0 lets the system choose.
        path: Path of a unix socket; "" for TCP.
    """

    host: str = ""
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        """Return the form that gunicorn and grpcio read."""
        if self.path:
            return f"unix:{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        return bool(self.path) or is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """Tell whether a host name or IP address is a loopback address, without a name service."""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


_LOCAL_PEERS = ("127.0.0.1", "::1", "::ffff:127.0.0.1")


def is_local_peer(peer: str) -> bool:
    """Tell whether a caller with this address is a program on this machine, and no proxy of a mesh.

    Such a proxy calls from another loopback address: Istio's from 127.0.0.6.

    Args:
        peer: The caller's IP address; "" for a unix socket.
    """
    return not peer or peer in _LOCAL_PEERS


def parse_address(text: str, setting: str) -> Address | None:
    """Return the address that a setting's text names, or None for "off".

    Args:
        text: "HOST:PORT", "[IPv6]:PORT", ":PORT" for every interface, "unix:PATH" or "off".

    Raises:
        AddressError: The text has another form.
    """
    if text == "off":
        return None
    if text.startswith("unix:"):
        if not text.removeprefix("unix:"):
            raise AddressError(f"setting '{setting}': unix: needs a path after the colon")
        return Address(path=text.removeprefix("unix:"))
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise AddressError(f"setting '{setting}': write IPv6 as [ADDRESS]:PORT, not '{text}'")
    if not colon or _PORT.fullmatch(port) is None or int(port) > 65535:
        raise AddressError(
            f"setting '{setting}': expected HOST:PORT, unix:PATH or off, got '{text}'"
        )
    return Address(host=host or "0.0.0.0", port=int(port))


_REMEDIES = {
    errno.EADDRNOTAVAIL: "this machine has no such address: 127.0.0.1 serves this machine alone, 0.0.0.0 all networks",
    errno.ENOENT: "make the folder of the socket first",
    errno.EACCES: "ports below 1024 are for root: choose a port from 1024",
}
"""Remedies for an address that the system refuses."""


def unusable(address: Address, setting: str, error: OSError) -> AddressError:
    """Return the error for an address that cannot be listened on.

    Args:
        setting: The name of the setting and of its flag.
    """
    if error.errno == errno.EADDRINUSE:
        return AddressError(
            f"setting '{setting}': {address} is in use; stop the server that listens there, or choose "
            f"another address with --{setting} HOST:PORT (port 0 takes a free port)"
        )
    reason = error.strerror or str(error)
    remedy = _REMEDIES.get(error.errno or 0) or f"choose another address with --{setting} HOST:PORT"
    return AddressError(f"setting '{setting}': {address} cannot be listened on: {reason}; {remedy}")


def check_free(address: Address, setting: str) -> None:
    """Refuse an address that cannot be listened on. Otherwise each worker would fail and be started again.

    Args:
        address: The address at which the server is about to listen.

    Raises:
        AddressError: The address is in use, does not exist, or needs more rights.
    """
    if address.path:
        taken = len(os.fsencode(address.path))
        if taken > SOCKET_PATH_BYTES:
            raise AddressError(
                f"setting '{setting}': the path of the unix socket has {taken} bytes, and the system takes "
                f"{SOCKET_PATH_BYTES}: {address}; choose a shorter path"
            )
        if not Path(address.path).absolute().parent.is_dir():
            raise unusable(address, setting, OSError(errno.ENOENT, os.strerror(errno.ENOENT)))
        return
    try:
        family, _, _, _, where = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, socket.SOCK_STREAM) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(where)
    except OSError as error:
        raise unusable(address, setting, error) from error


def check_exposure(address: Address, setting: str, *, insecure: bool, credentials: bool) -> None:
    """Refuse an address that strangers can reach unless they need credentials.

    Args:
        address: The address at which the server is about to listen.
        insecure: Whether the operator accepts callers without credentials.
        credentials: Whether callers need a token or a certificate.

    Raises:
        AddressError: The address can be reached from other machines, and neither is set.
    """
    if address.loopback or insecure or credentials:
        return
    raise AddressError(
        f"setting '{setting}': {address} can be reached from other machines and callers need no "
        f"credentials; give --token-file or --tls-client-ca, or --insecure if the network keeps strangers out"
    )
