"""The interface of a model version towards the threads that serve it."""

from typing import Protocol

from ksrv._native.queue.request_queue import Queue
from ksrv._native.queue.stats import Stats
from ksrv.engine.batches.batch import RunnableBatch
from ksrv.engine.batches.pending_batch import PendingBatch
from ksrv.engine.requests.handle import QueuedRequest
from ksrv.engine.sequences.table import SequenceTable
from ksrv.errors import Overloaded
from ksrv.images.preparer import ImagePreparer
from ksrv.source import ModelConfig
from ksrv.spec import ModelSpec


class InstanceHost(Protocol):
    """A model version, as its instances, its prefetch thread and its decode thread see it.

    Attributes:
        images: How the images of each image input are prepared, by input name.
        retry: Whether a batch is run again after its handler's process died.
        delay_ns: How long the oldest request of a batch waits for a full batch.
        runs_inline: Whether requests may be run on the threads that submit them.
        sequences: The open sequences, or None where the model serves none.
        stats: Counts requests that no instance has run.
    """

    spec: ModelSpec
    queue: Queue
    config: ModelConfig
    images: dict[str, ImagePreparer]
    retry: bool
    timeout_ns: int
    run_timeout_ns: int
    delay_ns: int
    runs_inline: bool
    sequences: SequenceTable | None
    stats: Stats

    def new_batch(self, room: int = 0) -> PendingBatch:
        """Return an empty batch that may grow to `room` rows."""

    def new_batch_of(self, handles: list[QueuedRequest], room: int) -> RunnableBatch:
        """Return an empty batch for requests and others like them.

        Args:
            handles: The requests that are to be added first.
            room: How many rows the batch may grow to.
        """

    def take_ready(self) -> RunnableBatch:
        """Return the first of the batches that are ready to be run."""

    def requeue(self, batch: RunnableBatch) -> None:
        """Have the next idle instance run a batch."""

    def publish_open(self, batch: RunnableBatch) -> None:
        """Have an idle instance run the batch that the prefetch thread has filled."""

    def queue_full(self) -> Overloaded:
        """Return the error of a request for which the queue has no place."""

    def all_stats(self) -> list[Stats]:
        """Return the counts of its parts."""

    def instance_lost(self, reason: str) -> None:
        """Note that an instance has ended for good."""

    def decode_apart(self, handles: list[QueuedRequest]) -> None:
        """Take over requests whose images take long to decode, and requeue them decoded."""

    def wait_apart(self) -> bool:
        """Wait until the decode thread has no request left; return whether a batch may be ready."""
