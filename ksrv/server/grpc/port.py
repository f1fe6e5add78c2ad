"""Holding the gRPC port for the workers.

grpcio binds in each worker, after the fork. So that port 0 means one port for all of them, a reload
does not change it, and a second server on the same port fails loudly although workers share it, the
master binds it first: once alone to see that it is free, then shared, without listening.
"""

import contextlib
import os
import socket
import stat
from collections.abc import Collection
from dataclasses import replace

from ksrv.server.addresses import Address


def reserve(address: Address) -> tuple[Address, socket.socket | None]:
    """Bind an address for as long as the returned socket lives.

    Args:
        address: Where gRPC is to listen; port 0 picks a port.

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


def listen(
    address: Address, backlog: int, *, shared: bool = False, umask: int | None = None
) -> socket.socket:
    """Return a listening socket.

    Args:
        address: Where to listen.
        backlog: Connections that wait to be accepted at most.
        shared: Whether other sockets may listen there as well.
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
        if shared:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
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


def listeners() -> dict[int, int]:
    """Return the descriptors of this process's listening sockets by inode; none outside Linux."""
    found = {}
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):  # closed meanwhile, or no socket
                number = int(name)
                if stat.S_ISSOCK(os.fstat(number).st_mode) and _listens(number):
                    found[os.fstat(number).st_ino] = number
    return found


def stop_listening(inodes: Collection[int]) -> None:
    """Have listening sockets accept no more; connections that were accepted stay.

    grpcio closes its listeners only together with everything else, and what connects in between is
    reset.

    Args:
        inodes: Those of the sockets, from `listeners`.
    """
    for inode, number in listeners().items():
        if inode in inodes:
            with contextlib.suppress(OSError), duplicate(number) as copy:
                copy.shutdown(socket.SHUT_RD)


def _listens(number: int) -> bool:
    with duplicate(number) as copy:
        return bool(copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def duplicate(number: int) -> socket.socket:
    """Return a socket over a copy of a descriptor, to read and set options of grpcio's socket.

    Raises:
        OSError: The descriptor was closed, or is no socket's.
    """
    copied = os.dup(number)
    try:
        return socket.socket(fileno=copied)
    except OSError:
        os.close(copied)
        raise
