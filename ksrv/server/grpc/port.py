"""Holding the gRPC port for the workers.

The workers of the native server accept from one listener of the master's. grpcio binds in each worker,
after the fork. So that port 0 means one port for all of them, a reload does not change it, and a
second server on the same port fails loudly although workers share it, the master binds it first: once
alone to see that it is free, then shared, without listening.

A master that replaces another (SIGUSR2) inherits the socket, like the sockets of HTTP.
"""

import contextlib
import os
import socket
from dataclasses import replace

from ksrv.server.addresses import Address

_INHERITED = "_KSRV_GRPC_SOCKET"
"""The variable that names the descriptor of an inherited socket, and whether it listens."""


def reserve(address: Address) -> tuple[Address, socket.socket | None]:
    """Bind an address for as long as the returned socket lives.

    Args:
        address: The address for gRPC; port 0 picks a port.

    Returns:
        The address with its real port, and the socket that holds it; a unix path needs none.

    Raises:
        OSError: The address is taken or does not exist.
    """
    if address.path:
        return address, None
    family, _, _, _, where = socket.getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    with socket.socket(family, socket.SOCK_STREAM) as alone:
        alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        alone.bind(where)
        alone.listen(1)
        port = alone.getsockname()[1]
    shared = socket.socket(family, socket.SOCK_STREAM)
    # Without SO_REUSEADDR, or another server could bind the port before a worker listens on it.
    shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    shared.bind((where[0], port, *where[2:]))
    return replace(address, port=port), shared


def listen(address: Address, backlog: int, *, umask: int | None = None) -> socket.socket:
    """Return a listening socket.

    Args:
        address: Where to listen.
        backlog: Connections that wait to be accepted at most.
        umask: That of a unix socket; None for the process's.

    Raises:
        OSError: The address is taken or does not exist.
    """
    if address.path:
        made = _listen_on_path(address.path, umask)
    else:
        family, _, _, _, where = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        made = socket.socket(family, socket.SOCK_STREAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(where)
    made.listen(backlog)
    return made


def _listen_on_path(path: str, umask: int | None) -> socket.socket:
    """Return a socket that is bound to a path, in place of one that nobody listens on any more."""
    with contextlib.suppress(FileNotFoundError), socket.socket(socket.AF_UNIX) as trial:
        try:
            trial.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
    before = None if umask is None else os.umask(umask)
    try:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        made.bind(path)
    finally:
        if before is not None:
            os.umask(before)
    return made


def hand_over(held: socket.socket, environment: dict[str, str], *, listens: bool) -> None:
    """Let the program that is executed next in this process have the socket of the gRPC port.

    Args:
        environment: The variables that the program is given.
        listens: Whether workers accept from it; otherwise it holds the port for grpcio.
    """
    held.set_inheritable(True)
    environment[_INHERITED] = f"{held.fileno()} {int(listens)}"


def inherited(*, listens: bool) -> socket.socket | None:
    """Return the socket that the previous program handed over, or None.

    Args:
        listens: Whether workers are to accept from it. A socket of the other kind is closed; the port
            is then taken anew, which tells when the other program still holds it.
    """
    number, _, kind = os.environ.pop(_INHERITED, "").partition(" ")
    if not number:
        return None
    held = socket.socket(fileno=int(number))
    held.set_inheritable(False)
    if kind == str(int(listens)):
        return held
    held.close()
    return None
