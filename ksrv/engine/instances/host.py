"""The state that the threads of one model version share: instances, prefetch thread and decode thread."""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Literal, TypeAlias

from ksrv._native.queue.request_queue import Queue
from ksrv._native.queue.stats import Stats
from ksrv._native.server.request_batch import RequestBatch
from ksrv.engine.batches.batch import BatchModel, counted_failures, leased
from ksrv.engine.batches.padding import RowPadding
from ksrv.engine.executor import Executor
from ksrv.engine.instances.decode_thread import DecodeThread
from ksrv.engine.requests.handle import QueuedRequest
from ksrv.engine.requests.refusals import queue_full
from ksrv.engine.sequences.table import SequenceTable
from ksrv.errors import KsrvError, NotReady, Overloaded, without_paths
from ksrv.model.config import ModelConfig, ModelSource

State: TypeAlias = Literal["LOADING", "READY", "UNLOADING", "UNAVAILABLE"]
ExecutorFactory: TypeAlias = Callable[[ModelSource, int, int], Executor]
"""Makes the executor of an instance from the source, the instance's number and its threads."""

MILLISECOND = 1_000_000


class InstanceHost(BatchModel):
    """The queue of a model version, the batches that are ready to be run, and its settings.

    Args:
        source: The version on disk; it has settings.

    Attributes:
        state: The state that the repository index shows.
        reason: Why it is not ready.
        executors: The executors of its instances, each at the slot of its instance.
        retry: Whether a batch is run again after its handler's process died.
        delay_ns: How long the oldest request of a batch waits for a full batch.
        runs_inline: Whether requests may be run on the threads that submit them.
        sequences: The open sequences, or None where the model serves none.
        stats: Counts requests that no instance has run.
        all_stats: `stats`, and the counts of each instance.
        degraded: Why it has lost instances, while others serve; "" if it has lost none.
        note_refused: Called when an instance is given up, because a file of the model has changed.
    """

    def __init__(self, source: ModelSource, make_executor: ExecutorFactory, cores: int) -> None:
        config = source.config
        if config is None:
            raise ValueError(f"the model {source.name} has no settings")
        self.source = source
        self.config: ModelConfig = config
        self.spec = config.spec(source.name, source.version)
        self.state: State = "LOADING"
        self.reason = ""
        self.queue = Queue(config.queue_size, source.name)
        self.retry = config.retry and config.sequences is None  # the state is gone with the process
        self.timeout_ns = config.timeout_ms * MILLISECOND
        self.run_timeout_ns = config.run_timeout_ms * MILLISECOND
        batching = config.batching
        self.delay_ns = int(batching.max_delay_ms * MILLISECOND) if batching else 0
        self.runs_inline = False
        self.images = {}
        self.padding = RowPadding(self.spec)
        self.sequences: SequenceTable | None = None
        self.stats = Stats()
        self.all_stats = [self.stats]
        share = config.threads or max(1, cores // config.instances)
        self.executors = [make_executor(source, one, share) for one in range(config.instances)]
        # Leases the blocks of batches that any instance may run.
        self._lease = partial(leased, self.executors[0].lease)
        self._ready: deque[RequestBatch] = deque()
        self._decode_thread = DecodeThread(source.name, config.queue_size, self._decode)
        self._lost: list[str] = []
        self.degraded = ""
        self.note_refused: Callable[[], object] = lambda: None

    def new_batch(self, room: int = 0) -> RequestBatch:
        """Return an empty batch that may grow to `room` rows."""
        return RequestBatch(self, self._lease, room)

    def take_ready(self) -> RequestBatch:
        """Return the first of the batches that are ready to be run."""
        return self._ready.popleft()

    def requeue(self, batch: RequestBatch) -> None:
        """Have the next idle instance run a batch."""
        self._ready.append(batch)
        self.queue.requeue()

    def publish_open(self, batch: RequestBatch) -> None:
        """Have an idle instance run the batch that the prefetch thread has filled."""
        self._ready.append(batch)
        self.queue.close_open_batch(True)

    def queue_full(self) -> Overloaded:
        """Return the error of a request for which the queue has no place."""
        return queue_full(self.spec.name, self.config.queue_size)

    def decode_apart(self, handles: list[QueuedRequest]) -> None:
        """Take over requests whose images take long to decode, and requeue them decoded."""
        if not self._decode_thread.take(handles):
            answers = [self.queue_full()] * len(handles)
            self.queue.finish(handles, answers, count=counted_failures(self.stats))

    def _decode(self, handles: list[QueuedRequest]) -> None:
        batch = self.new_batch()
        self.fill(batch, handles, self.stats)
        if batch.handles:
            self.requeue(batch)

    def wait_apart(self) -> bool:
        """Wait until the decode thread has no request left; return whether a batch may be ready."""
        # A batch may have been requeued, and the thread ended, since the queue was found empty.
        return self._decode_thread.wait() or bool(self._ready)

    def instance_lost(self, reason: str) -> None:
        """Note that an instance has ended for good. Once none is left, what waits is refused."""
        self._lost.append(reason)
        reason = without_paths(reason, self.source.folder, self.source.root)
        if len(self._lost) < self.config.instances:
            self.degraded = reason
            return
        self.reason = reason
        self.state = "UNAVAILABLE"
        self.queue.close()
        self.fail_waiting(NotReady(f"the model {self.spec.name} is not ready: {reason}"))

    def fail_waiting(self, error: KsrvError) -> None:
        """End the requests that no instance runs yet."""
        handles = [handle for batch in self._ready for handle in batch.handles]
        self._ready.clear()
        handles += self.queue.take_all()
        self.queue.finish(handles, [error] * len(handles))
