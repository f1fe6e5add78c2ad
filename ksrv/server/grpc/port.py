"""The gRPC socket of the master process, which its workers share.

For the native server, the master listens (`listen`) and all workers accept from this socket. grpcio cannot take a
socket: it binds the port in each worker, with SO_REUSEPORT. So the master only reserves the port (`reserve`): it first
binds the port without sharing, to see that no other server has it, and then with SO_REUSEPORT, without listening. All
workers then have the same port, even for port 0 and after a reload, and a second server on the port fails.

A master that replaces another (SIGUSR2) inherits the socket (`hand_over`, `inherited`), like the sockets of HTTP.
"""

import contextlib
import os
import socket
from dataclasses import replace

from ksrv.server.addresses import Address

_INHERITED = "_KSRV_GRPC_SOCKET"
"""The environment variable with the descriptor of an inherited socket, and 1 if it listens, else 0."""


def reserve(address: Address) -> tuple[Address, socket.socket | None]:
    """Bind an address for grpcio, as long as the returned socket is open.

    Args:
        address: The address for gRPC; port 0 picks a port.

    Returns:
        The address with the real port, and the socket that reserves it; no socket for a unix path.

    Raises:
        OSError: The address is in use or does not exist.
    """
    if address.path:
        return address, None
    family, _, _, _, where = socket.getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    with socket.socket(family, socket.SOCK_STREAM) as unshared:
        unshared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        unshared.bind(where)
        unshared.listen(1)
        port = unshared.getsockname()[1]
    shared = socket.socket(family, socket.SOCK_STREAM)
    # SO_REUSEADDR is not set: with it, another server could bind the port before a worker listens on it.
    shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    shared.bind((where[0], port, *where[2:]))
    return replace(address, port=port), shared


def listen(address: Address, backlog: int, *, umask: int | None = None) -> socket.socket:
    """Return a listening socket.

    Args:
        address: Where to listen.
        backlog: The most connections that wait to be accepted.
        umask: The umask for the file of a unix socket; None for the umask of the process.

    Raises:
        OSError: The address is in use or does not exist.
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
    """Return a socket that is bound to a path. A file of a socket on which no process listens is removed first."""
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
    """Pass the gRPC socket to the program that this process executes next, such as a new master.

    Args:
        environment: The environment variables for the program.
        listens: Whether workers accept from the socket; otherwise it reserves the port for grpcio.
    """
    held.set_inheritable(True)
    environment[_INHERITED] = f"{held.fileno()} {int(listens)}"


def inherited(*, listens: bool) -> socket.socket | None:
    """Return the socket that the previous program passed on by `hand_over`, or None.

    Args:
        listens: Whether workers will accept from the socket. A socket of the other kind is closed. The caller then
            binds the port again, which fails if the other program still has it.
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
