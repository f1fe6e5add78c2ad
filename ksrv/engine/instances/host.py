"""The queue and the state that the threads of a model version share, and how batches are filled, begun and answered.

A batch of one request uses the arrays of the request, without a copy. If several requests are joined, each tensor is
copied once into its rows of a leased block, and each image is decoded once into its rows. A batch can grow while an
earlier batch still runs: its images are decoded as they arrive. Inputs that are padded are joined last, when the
longest row of the batch is known.
"""

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias

from ksrv._native.queue.request_queue import Queue
from ksrv._native.queue.stats import Stats
from ksrv._native.server.request_batch import RequestBatch
from ksrv.engine.batches.padding import RowPadding, in_order
from ksrv.engine.batches.split import split
from ksrv.engine.batches.streaming import chunk_sender
from ksrv.engine.executor import Executor
from ksrv.engine.instances.decode_thread import DecodeThread
from ksrv.engine.requests.handle import QueuedRequest
from ksrv.engine.requests.refusals import queue_full
from ksrv.engine.sequences.table import SequenceTable
from ksrv.errors import HandlerFailed, KsrvError, NotReady, Overloaded, without_paths
from ksrv.images.preparer import ImagePreparer
from ksrv.model.config import ModelConfig, ModelSource
from ksrv.request import (
    ExecutorOutputs,
    ImagePlacement,
    InferRequest,
    InferResponse,
    RequestPart,
    Tensor,
)

log = logging.getLogger("ksrv.engine")

State: TypeAlias = Literal["LOADING", "READY", "UNLOADING", "UNAVAILABLE"]
ExecutorFactory: TypeAlias = Callable[[ModelSource, int, int], Executor]
"""Makes the executor of an instance from the source, the instance's number and its threads."""

MILLISECOND = 1_000_000


class InstanceHost:
    """The queue of a model version, the batches that are ready to be run, and its settings.

    `ksrv.engine.model.ModelVersion` derives from it and adds loading and requests. This base is separate because the
    instances need it and must not depend on `ModelVersion`, which makes them.

    A `RequestBatch`, which is compiled, calls `begin` before its batch runs, `read_requests` if its handler reads the
    requests, and `answer` after the run. The threads of all instances, the prefetch thread and the decode thread share
    the object.

    Args:
        source: The version on disk; it has settings.

    Attributes:
        state: The state that the repository index shows.
        reason: Why the version is not ready, or "".
        spec: The model's description, completed once the model is loaded.
        queue: The queue of the model's requests.
        images: How the images of each image input are prepared, by input name.
        padding: How rows of different lengths are padded.
        executors: The executors of its instances, each at the slot of its instance.
        retry: Whether a batch is run again after its handler's process died.
        timeout_ns: How long a request may take from its arrival to its answer; 0 for any time.
        run_timeout_ns: How long a batch may run; 0 for any time.
        delay_ns: How long the oldest request of a batch waits for a full batch.
        runs_inline: Whether requests may be run on the threads that submit them.
        sequences: The open sequences, or None if the model serves no sequences.
        stats: Counts requests that no instance has run.
        all_stats: `stats`, and the counts of each instance.
        degraded: Why instances have ended for good while others serve; "" if all serve.
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
        self.images: dict[str, ImagePreparer] = {}
        self.padding = RowPadding(self.spec)
        self.sequences: SequenceTable | None = None
        self.stats = Stats()
        self.all_stats = [self.stats]
        # Instances that wait for their calls to other models need no cores.
        busy = 1 if config.needs else config.instances
        share = config.threads or max(1, cores // busy)
        self.executors = [make_executor(source, slot, share) for slot in range(config.instances)]
        # Leases the blocks of batches that any instance may run.
        self._lease = partial(leased, self.executors[0].lease)
        self._ready: deque[RequestBatch] = deque()
        self._decode_thread = DecodeThread(source.name, config.queue_size, self._decode)
        self._lost: list[str] = []  # for each instance that has ended for good, the reason
        self.degraded = ""
        self.note_refused: Callable[[], object] = lambda: None

    # ---- a batch ----------------------------------------------------------------------------

    def fill(self, batch: RequestBatch, handles: list[QueuedRequest], stats: Stats) -> None:
        """Add requests to a batch, and answer the requests that cannot be added."""
        known = len(batch.handles)
        if handles and handles[0].sequence is not None:
            handles = self._of_open_sequences(handles, stats)
        try:
            failed = batch.add(handles)
        except BaseException as error:
            shown: KsrvError
            if isinstance(error, KsrvError):
                shown = error
            else:
                log.error("a batch cannot be assembled", exc_info=error)
                shown = HandlerFailed(f"the batch cannot be assembled: {type(error).__name__}")
            batch.keep(batch.handles[:known])
            self._refuse([(handle, shown) for handle in handles], stats)
            return
        self._refuse(failed, stats)

    def read_requests(self, handles: list[QueuedRequest]) -> list[RequestPart]:
        """Return the part of each request that the handler sees: rows, id, parameters, headers."""
        made = []
        row = 0
        for handle in handles:
            end = row + handle.rows
            part = RequestPart.of(handle.request, slice(row, end))
            if self.images:
                part.images = self._placements(handle.request)
            made.append(part)
            row = end
        return made

    def _placements(self, request: InferRequest) -> dict[str, list[ImagePlacement]]:
        """Return where the encoded images of each input are in their rows."""
        checked = request.images or {}
        return {
            tensor.name: self.images[tensor.name].placements(tensor.data, checked.get(tensor.name))
            for tensor in request.inputs
            if tensor.name in self.images and isinstance(tensor.data, list)
        }

    def begin(self, batch: RequestBatch) -> dict[str, Tensor]:
        """Prepare to run requests that were parsed in Python; return the tensors of the first."""
        first = batch.handles[0]
        if first.sequence is not None:
            for handle in batch.handles:
                # From now on the handler has a state, which can be lost.
                handle.sequence.begun = True
        batch.explain = first.request.explain
        batch.emit = chunk_sender(self.spec, batch.handles, self.queue)
        return {tensor.name: tensor for tensor in in_order(self.spec, first.request)}

    def answer(
        self, batch: RequestBatch, outputs: ExecutorOutputs, stats: Stats, later: bool
    ) -> None:
        """Split the outputs of a batch into the answers of its requests, and send the answers."""
        timings = {"assemble": batch.spent_ns, **outputs.timings}
        answers = split(self.spec, batch.handles, outputs, timings, batch.references)
        self.finish(batch, answers, stats, timings, later=later)

    def finish(
        self,
        batch: RequestBatch,
        answers: Sequence[InferResponse | KsrvError],
        stats: Stats,
        timings: dict[str, int],
        *,
        later: bool,
    ) -> None:
        """Hand the answers of a batch to its requests, and count them.

        Args:
            timings: Nanoseconds by stage.
            later: See `Queue.finish`.
        """
        # Requests that a chunk marked as the last, or an error, has ended while the batch ran. `Queue.finish` answers
        # them no more, but they count with this batch.
        ended: Mapping[int, InferResponse | KsrvError] = (
            {} if batch.emit is None else batch.emit.ended
        )

        def count(won: list[bool]) -> None:
            counted, won = list(answers), list(won)
            for index, answer in ended.items():
                won[index], counted[index] = True, answer
            stats.batch(batch.handles, counted, won, batch.spent_ns, batch.ran_ns, timings)

        self.queue.finish(batch.handles, list(answers), later, count)

    def _of_open_sequences(self, handles: list[QueuedRequest], stats: Stats) -> list[QueuedRequest]:
        """Return the requests whose sequences have their state, and answer the others."""
        found = [(handle, handle.sequence.refusal(handle.request.sequence)) for handle in handles]
        self._refuse([(handle, error) for handle, error in found if error is not None], stats)
        return [handle for handle, error in found if error is None]

    def _refuse(self, failed: list[tuple[QueuedRequest, KsrvError]], stats: Stats) -> None:
        if failed:
            handles = [handle for handle, _ in failed]
            errors = [error for _, error in failed]
            self.queue.finish(handles, errors, count=counted_failures(stats))

    # ---- batches that are ready to be run ---------------------------------------------------

    def new_batch(self, room: int = 0) -> RequestBatch:
        """Return an empty batch that may grow to `room` rows."""
        return RequestBatch(self, self._lease, room)

    def take_ready(self) -> RequestBatch:
        """Return the first of the batches that are ready to be run."""
        return self._ready.popleft()

    def requeue(self, batch: RequestBatch) -> None:
        """Have the next idle instance run a batch that is already assembled."""
        self._ready.append(batch)
        self.queue.requeue()

    def publish_open(self, batch: RequestBatch) -> None:
        """Have an idle instance run the batch that the prefetch thread has filled."""
        self._ready.append(batch)
        self.queue.close_open_batch(True)  # True: with a batch for an instance

    def queue_full(self) -> Overloaded:
        """Return the error for a request that finds the queue full."""
        return queue_full(self.spec.name, self.config.queue_size)

    def decode_slow(self, handles: list[QueuedRequest]) -> None:
        """Take over requests whose images take long to decode, and requeue them decoded."""
        if not self._decode_thread.take(handles):
            answers = [self.queue_full()] * len(handles)
            self.queue.finish(handles, answers, count=counted_failures(self.stats))

    def _decode(self, handles: list[QueuedRequest]) -> None:
        batch = self.new_batch()
        self.fill(batch, handles, self.stats)
        if batch.handles:
            self.requeue(batch)

    def wait_decoded(self) -> bool:
        """Wait until the decode thread has no request left; return whether a batch may be ready."""
        # A batch may have been requeued, and the thread ended, since the queue was found empty.
        return self._decode_thread.wait() or bool(self._ready)

    def instance_lost(self, reason: str) -> None:
        """Note that an instance has ended for good. After the last instance, waiting requests are refused."""
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
        """End the requests that no instance runs yet, with an error."""
        handles = [handle for batch in self._ready for handle in batch.handles]
        self._ready.clear()
        handles += self.queue.take_all()
        self.queue.finish(handles, [error] * len(handles))


def leased(lease: Callable[[int], Any], nbytes: int) -> Any:
    """Return a block for a batch.

    Args:
        lease: Returns a writable block of at least so many bytes.

    Raises:
        HandlerFailed: No memory is left.
    """
    try:
        return lease(nbytes)
    except MemoryError as error:
        raise HandlerFailed("the server has no memory for the batch") from error


def counted_failures(stats: Stats) -> Callable[[list[bool]], None]:
    """Return a function that counts the failures of requests which `Queue.finish` answers.

    Requests that had ended before are counted as expired or cancelled already.
    """

    def count(won: list[bool]) -> None:
        stats.failed(sum(won))

    return count
