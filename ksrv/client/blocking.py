"""The blocking client: the methods of `AsyncClient`, as functions that return when the answer has arrived.

`_Calls` is an `AsyncClient` over sockets that block, so its coroutines never suspend. `Client` wraps each of its
methods in a function that runs the coroutine to its end (`ksrv.client.waiting`).
"""

import functools
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from typing import Any, Concatenate, ParamSpec, TypeVar

from ksrv.client.asynchronous import AsyncClient
from ksrv.client.waiting import BLOCKING, iterate, wait

P = ParamSpec("P")
T = TypeVar("T")


class _Calls(AsyncClient):
    """The client's coroutines, over functions that block."""

    _waiting = BLOCKING


def _waiting_for(
    call: Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate["Client", P], T]:
    """Turn a coroutine function of `AsyncClient` into a method of `Client`, which blocks."""

    @functools.wraps(call)
    def method(client: "Client", /, *args: P.args, **named: P.kwargs) -> T:
        return wait(call(client._calls, *args, **named))

    return method


def _iterating(
    call: Callable[Concatenate[AsyncClient, P], AsyncGenerator[T, None]],
) -> Callable[Concatenate["Client", P], Generator[T, None, None]]:
    """Turn an asynchronous generator of `AsyncClient` into a generator of `Client`, which blocks."""

    @functools.wraps(call)
    def method(client: "Client", /, *args: P.args, **named: P.kwargs) -> Generator[T, None, None]:
        return iterate(call(client._calls, *args, **named))

    return method


class Client:
    """A client whose methods block until the answer has arrived. Any number of threads may share a client.

    Connections are kept and used again. If the server is busy (429, 503), a call is made again after the time that the
    server asks for, within the call's timeout.

    Args:
        url: http://HOST:PORT or https://, for REST; grpc://HOST:PORT or grpcs://, for gRPC. A path
            after HOST:PORT is put in front of every route of REST.
        token: Sent as bearer token with every call.
        ca: A file (PEM) of the authorities to trust with TLS, instead of the system's.
        certificate: Files (PEM) of the client's certificate chain and key, for servers that ask.
        timeout: Seconds that a call may take, repeats included, unless the call has another timeout.
        retries: How often a call is made again while the server is busy. With 0 no request is sent
            twice for any reason.

    Raises:
        ValueError: The URL or the token is malformed.
        OSError: A file cannot be read.
        ImportError: The URL needs grpcio, which is not installed.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        ca: str | None = None,
        certificate: tuple[str, str] | None = None,
        timeout: float = 60.0,
        retries: int = 3,
    ) -> None:
        self._calls = _Calls(
            url, token=token, ca=ca, certificate=certificate, timeout=timeout, retries=retries
        )
        self.url = self._calls.url

    infer = _waiting_for(AsyncClient.infer)
    stream = _iterating(AsyncClient.stream)
    generate = _iterating(AsyncClient.generate)
    metadata = _waiting_for(AsyncClient.metadata)
    ready = _waiting_for(AsyncClient.ready)
    live = _waiting_for(AsyncClient.live)
    wait_ready = _waiting_for(AsyncClient.wait_ready)
    index = _waiting_for(AsyncClient.index)
    load = _waiting_for(AsyncClient.load)
    unload = _waiting_for(AsyncClient.unload)
    promote = _waiting_for(AsyncClient.promote)
    statistics = _waiting_for(AsyncClient.statistics)
    close = _waiting_for(AsyncClient.close)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
