from typing import Any

from ksrv._native.ipc.batch_ring import WorkerRing
from ksrv._native.queue.request_queue import Queue
from ksrv._native.queue.stats import Stats

class DispatchedBatch:
    @property
    def ring(self) -> WorkerRing: ...
    @property
    def handles(self) -> list[Any]: ...
    @property
    def batch_number(self) -> int: ...
    @property
    def began_ns(self) -> int: ...
    @property
    def deadline_ns(self) -> int | None: ...
    @property
    def assemble_ns(self) -> int: ...
    @property
    def outputs(self) -> list[Any] | None: ...
    @property
    def timings(self) -> dict[str, int]: ...
    @property
    def fault(self) -> str: ...

class BatchDispatcher:
    ring: WorkerRing
    def __init__(
        self,
        queue: Queue,
        ring: WorkerRing,
        stats: Stats,
        *,
        slot: int,
        room: int,
        max_rows: int,
        delay_ns: int,
        run_timeout_ns: int,
    ) -> None: ...
    def serve(self) -> Any: ...
    def put_back(self) -> None: ...
