"""Crowds of clients that say nothing, or begin a request and go on by single bytes."""

import random
import socket
from types import TracebackType

HEAD = b"POST /v2/models/here/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 4000\r\n"


class Crowd:
    """Connections that are open while the context is."""

    def __init__(self, address: str, choose: random.Random, count: int) -> None:
        host, _, port = address.rpartition(":")
        self._target, self._choose, self._count = (host, int(port)), choose, count
        self._clients: list[socket.socket] = []

    def __enter__(self) -> "Crowd":
        for _ in range(self._count):
            client = socket.create_connection(self._target, 60)
            self._clients.append(client)
            begun = HEAD[: self._choose.randint(1, len(HEAD))]
            client.sendall(self._choose.choice((b"", begun, HEAD + b"\r\n{")))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        for client in self._clients:
            client.close()

    def go_on(self, count: int) -> None:
        """Have some of the clients send a byte each; clients whose connection the server closed close their side."""
        for client in self._choose.sample(self._clients, min(count, len(self._clients))):
            try:
                client.send(b"x", socket.MSG_DONTWAIT)
            except OSError:  # it took too long, and was sent away
                client.close()
                self._clients.remove(client)
