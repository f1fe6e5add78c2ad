"""Holding the gRPC port for the workers.

grpcio binds in each worker, after the fork. So that port 0 means one port for all of them, a reload
does not change it, and a second server on the same port fails loudly although workers share it, the
master binds it first: once alone to see that it is free, then shared, without listening.
"""

import socket
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
