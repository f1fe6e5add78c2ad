from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from ksrv._native.http.proxy_header import ProxyRules
from ksrv._native.http.request_head import HeadRules
from ksrv._native.queue.request_queue import Queue
from ksrv._native.reactor.event_loop import EventLoop
from ksrv._native.server.app_message import AppMessage
from ksrv._native.server.exchange import Exchange
from ksrv._native.server.model_endpoint import ModelEndpoint
from ksrv._native.tls.tls_context import TlsContext

COUNTERS: Final[tuple[str, ...]]
PREPARED_ANSWERS_NEEDED: Final[tuple[str, ...]]

PreparedAnswer: TypeAlias = tuple[int, bytes, bytes, bytes]
Address: TypeAlias = tuple[Any, ...] | str
Route: TypeAlias = tuple[
    str,
    str,
    Queue,
    PreparedAnswer,
    ModelEndpoint | None,
    PreparedAnswer | None,
    PreparedAnswer | None,
]

class HttpServer:
    def __init__(
        self,
        loop: EventLoop,
        rules: HeadRules,
        handler: Callable[[Exchange], None],
        answers: Mapping[str, PreparedAnswer],
        *,
        connections: int = 1000,
        head: float = 10.0,
        grace: float = 10.0,
        rate: int = 4096,
        idle: float = 75.0,
        age: float = 0.0,
        requests: int = 0,
        memory_wait: float = 1.0,
        transfer: int = 300,
        check: Callable[[bytes], bool] | None = None,
        shared: bool = False,
        log: bool = False,
        tls: TlsContext | None = None,
        server: str = "gunicorn",
        proxy: ProxyRules | None = None,
    ) -> None: ...
    def listen(self, listeners: Sequence[int]) -> None: ...
    def stop(self) -> None: ...
    def accept(self, enabled: bool) -> None: ...
    def drain(self) -> None: ...
    def set_health(
        self, *, live: bool, ready: bool, unready: PreparedAnswer | None = None
    ) -> None: ...
    @property
    def model_changes(self) -> int: ...
    def note_model_change(self) -> None: ...
    def set_routes(self, routes: Iterable[Route], state: int = 0) -> None: ...
    def forget_endpoints(self) -> None: ...
    @property
    def open_connections(self) -> int: ...
    def counters(self) -> dict[str, int]: ...
    def errors(self) -> dict[int, int]: ...
    def next_app_message(self, *, questions: bool = False) -> AppMessage | None: ...
    def proxy_refusals(self) -> list[tuple[Address, str]]: ...
    def records(self) -> list[tuple[float, float, int, int, int, Address, bytes, str, str]]: ...
