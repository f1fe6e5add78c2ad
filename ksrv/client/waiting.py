"""How a client waits: a blocking client on its thread, an asyncio client on the event loop.

Everything above the channels is written once, as coroutines. For the blocking client they run on channels that block,
so they never suspend.
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
    """The functions that wait.

    Attributes:
        open_channel: Opens a connection over HTTP.
        sleep: Sleeps for some seconds.
        grpc: The module of grpcio.
    """

    open_channel: Open
    sleep: Callable[[float], Awaitable[None]]
    grpc: str


async def _sleep(seconds: float) -> None:
    time.sleep(seconds)


BLOCKING = Waiting(open_socket, _sleep, "grpc")
ASYNCIO = Waiting(open_streams, asyncio.sleep, "grpc.aio")


def wait(call: Coroutine[Any, Any, Value]) -> Value:
    """Run a coroutine over `BLOCKING` to its end, and return its value."""
    try:
        call.send(None)
    except StopIteration as end:
        value: Value = end.value
        return value
    raise RuntimeError("a blocking call was suspended")


def iterate(parts: AsyncGenerator[Value, None]) -> Generator[Value, None, None]:
    """Yield what an asynchronous generator over `BLOCKING` yields."""
    try:
        while True:
            try:
                part = wait(parts.__anext__())
            except StopAsyncIteration:
                return
            yield part
    finally:
        wait(parts.aclose())
