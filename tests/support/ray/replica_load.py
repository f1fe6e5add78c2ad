"""Clients of several replicas: each takes the next address in turn, and another address if a connection is refused."""

import http.client
import select
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

STALE = (ConnectionRefusedError, ConnectionAbortedError)


@dataclass(frozen=True)
class Sent:
    """A request that a replica was sent."""

    address: str
    begun: float


@dataclass(frozen=True)
class Loss:
    """A request that was sent and not answered with 200."""

    sent: Sent
    why: str


class ReplicaLoad:
    """Sends requests on so many threads while its context is open.

    A connection that the server has closed is replaced before a request is sent on it, and one that is
    refused sends the request elsewhere. Everything else that goes wrong is a loss; nothing is repeated.
    """

    def __init__(
        self,
        addresses: Callable[[], Sequence[str]],
        path: str,
        body: bytes,
        threads: int = 4,
    ) -> None:
        self._ask = addresses
        self._path = path
        self._body = body
        self._addresses: tuple[str, ...] = tuple(addresses())
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._call, args=(n,)) for n in range(threads)]
        self._threads.append(threading.Thread(target=self._refresh))
        self.answered: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.lost: list[Loss] = []
        self._held: dict[int, Sent] = {}
        self.errors: list[BaseException] = []

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(60)

    @property
    def total(self) -> int:
        """How many requests were answered so far."""
        return sum(self.answered.values())

    def held_by(self, addresses: Collection[str]) -> set[Sent]:
        """Return the requests that some replicas have and have not answered."""
        return {sent for sent in list(self._held.values()) if sent.address in addresses}

    def wait_for(self, more: int, timeout: float = 60.0) -> None:
        """Wait until so many more requests were answered."""
        until, deadline = self.total + more, time.monotonic() + timeout
        while self.total < until:
            assert time.monotonic() < deadline, f"{self.total} of {until}: {self.lost[-3:]}"
            assert not self.errors, self.errors
            time.sleep(0.02)

    def _refresh(self) -> None:
        while not self._ended.wait(0.3):
            try:
                self._addresses = tuple(self._ask())
            except TimeoutError:  # a busy machine starts the list anew
                continue
            except Exception as error:
                self.errors.append(error)

    def _call(self, turn: int) -> None:
        try:
            connections: dict[str, http.client.HTTPConnection] = {}
            while not self._ended.is_set():
                turn += 1
                listed = self._addresses
                if not listed:
                    time.sleep(0.02)
                    continue
                self._request(connections, listed[turn % len(listed)])
            for connection in connections.values():
                connection.close()
        except BaseException as error:
            self.errors.append(error)
            raise

    def _request(self, connections: dict[str, http.client.HTTPConnection], address: str) -> None:
        connection = connections.pop(address, None)
        if connection is not None and _closed(connection.sock):
            connection.close()
            connection = None
        if connection is None:
            host, _, port = address.rpartition(":")
            connection = http.client.HTTPConnection(host, int(port), timeout=60)
            try:
                connection.connect()
            except STALE:
                self.refused[address] += 1
                time.sleep(0.01)
                return
        sent = Sent(address, time.monotonic())
        self._held[threading.get_ident()] = sent
        try:
            connection.request("POST", self._path, self._body)
            answer = connection.getresponse()
            text = answer.read()
        except (OSError, http.client.HTTPException) as error:
            self.lost.append(Loss(sent, repr(error)))
            connection.close()
            return
        finally:
            del self._held[threading.get_ident()]
        if answer.status == 200:
            self.answered[address] += 1
        else:
            self.lost.append(Loss(sent, f"{answer.status} {text!r}"))
        if answer.will_close:
            connection.close()
        else:
            connections[address] = connection


def _closed(peer: socket.socket | None) -> bool:
    """Whether the server has ended a connection that waits for its next request."""
    return peer is None or bool(select.select([peer], [], [], 0)[0])
