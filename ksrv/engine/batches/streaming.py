"""Intermediate answers of a running batch, on their way to the requests that want them.

A handler sends one chunk for every request of its batch at once. Each is split off like a final
answer, so that a chunk that is being sent never changes under the handler's hands. A request that
has ended, because its client left or its deadline passed, is skipped.
"""

import logging
from collections.abc import Sequence

from ksrv.engine.batches.split import split
from ksrv.engine.request_handle import QueuedRequest
from ksrv.request import BatchOutputs, InferResponse
from ksrv.spec import ModelSpec

log = logging.getLogger("ksrv.engine")


class ChunkSender:
    """The emitter of one batch, `BatchInputs.emit`.

    Args:
        spec: The model's description.
        handles: The batch's requests, in row order.

    Attributes:
        sent: Whether a client has received a chunk.
    """

    def __init__(self, spec: ModelSpec, handles: Sequence[QueuedRequest]) -> None:
        self._spec = spec
        self._handles = handles
        self.sent = False

    def __call__(self, outputs: BatchOutputs) -> None:
        """Hand one chunk to every request that still wants one."""
        answers = split(self._spec, self._handles, outputs, {}, [], {})
        for index, (handle, answer) in enumerate(zip(self._handles, answers, strict=True)):
            on_chunk = handle.request.on_chunk
            if on_chunk is None or handle.done():
                continue
            if outputs.only is not None and index not in outputs.only:
                continue
            if isinstance(answer, InferResponse):
                on_chunk(answer)
                self.sent = True
            else:
                log.error("an intermediate answer is dropped: %s", answer.message)

    def listening(self) -> frozenset[int]:
        """See `ksrv.request.Emitter.listening`."""
        return frozenset(index for index, handle in enumerate(self._handles) if not handle.done())


def chunk_sender(spec: ModelSpec, handles: Sequence[QueuedRequest]) -> ChunkSender | None:
    """Return where the batch's intermediate answers go, or None where no client streams.

    Args:
        spec: The model's description.
        handles: The batch's requests, in row order.
    """
    for handle in handles:
        if handle.request.on_chunk is not None:
            return ChunkSender(spec, handles)
    return None
