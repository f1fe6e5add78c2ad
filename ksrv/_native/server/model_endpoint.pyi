from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ksrv._native.queue.request_handle import NativeHandle
from ksrv._native.queue.request_queue import Queue
from ksrv._native.server.exchange import Exchange
from ksrv._native.server.fast_images import FastImages

# What compiled code calls of `ksrv.server.rest.fast_path.FastPath`, which stands above it.
class FastPathCalls(Protocol):
    def __call__(self, exchange: Exchange) -> None: ...
    def fast_request(self, spec: Any, body: memoryview, header_length: str, head: bytes) -> Any: ...
    def fast_message(self, spec: Any, message: memoryview, head: bytes) -> Any: ...
    def deliver(self, exchange: Exchange, request: Any, response: Any) -> None: ...
    def refuse(self, exchange: Exchange, error: Exception) -> None: ...

class FastHandle(NativeHandle): ...

class ModelEndpoint:
    queue: Queue
    def __init__(
        self,
        queue: Queue,
        spec: Any,
        *,
        timeout_ns: int,
        route: FastPathCalls,
        runs: Sequence[Callable[[list[Any]], None]],
        late: tuple[bytes, bytes, bytes, bytes, bytes],
        json_limit: int,
        hides_token: bool,
        depth: int,
        nan_literals: bool,
        images: dict[str, FastImages | None] | None = None,
    ) -> None: ...
    @property
    def unused(self) -> bool: ...
