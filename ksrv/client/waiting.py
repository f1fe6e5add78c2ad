"""The functions with which a client waits: a blocking client in its thread, an asyncio client in the event loop.

The client's code is written once, as coroutines. In a blocking client they call the functions of `BLOCKING`, which
block instead of suspending. So `wait` can run a coroutine to its end in one step, without an event loop.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from dataclasses import dataclass
from typing import Any, TypeVar

from ksrv.client.http1.channels import open_socket, open_streams
from ksrv.client.http1.connections import Open

Value = TypeVar("Value")


@dataclass(frozen=True)
class Waiting:
    """The functions that wait, for one kind of client.

    Attributes:
        open_channel: Opens the channel of an HTTP connection.
        sleep: Sleeps for some seconds.
        grpc: The name of grpcio's module.
    """

    open_channel: Open
    sleep: Callable[[float], Awaitable[None]]
    grpc: str


async def _sleep(seconds: float) -> None:
    time.sleep(seconds)


BLOCKING = Waiting(open_socket, _sleep, "grpc")
ASYNCIO = Waiting(open_streams, asyncio.sleep, "grpc.aio")


def wait(call: Coroutine[Any, Any, Value]) -> Value:
    """Run a coroutine that uses `BLOCKING` to its end, and return its value."""
    try:
        call.send(None)
    except StopIteration as end:
        value: Value = end.value
        return value
    raise RuntimeError("a blocking call was suspended")


def iterate(parts: AsyncGenerator[Value, None]) -> Generator[Value, None, None]:
    """Yield the values of an asynchronous generator that uses `BLOCKING`."""
    try:
        while True:
            try:
                part = wait(parts.__anext__())
            except StopAsyncIteration:
                return
            yield part
    finally:
        wait(parts.aclose())
