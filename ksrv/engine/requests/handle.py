"""The handles that `Engine.submit` returns: to wait for an answer, to cancel it, to be called back."""

import itertools
from collections.abc import Callable, Sequence

from ksrv._native.queue.request_handle import NativeHandle
from ksrv.engine.requests.refusals import deadline_exceeded
from ksrv.errors import Cancelled, KsrvError
from ksrv.request import InferResponse, RequestHandle

MILLISECOND = 1_000_000


class QueuedRequest(NativeHandle):
    """A request that the native queue carries."""

    __slots__ = ()

    def wait(self) -> InferResponse:
        """See `RequestHandle.wait`."""
        self.join()
        return self.outcome()

    def outcome(self) -> InferResponse:
        """Return the response of a request that has ended, or raise its error."""
        answer = self.answer
        if isinstance(answer, InferResponse):
            return answer
        if isinstance(answer, KsrvError):
            raise answer.with_traceback(None)
        raise self._ended_without_answer()

    def _ended_without_answer(self) -> KsrvError:
        model = self.request.model_name
        if self.state == "cancelled":
            return Cancelled(f"the request to the model {model} was cancelled")
        if self.state == "expired":
            waited = (self.ended_ns - self.enqueued_ns) // MILLISECOND
            return deadline_exceeded(model, waited, running=self.ended_running)
        raise RuntimeError(f"the request to the model {model} is {self.state}, not answered")


class SplitRequest:
    """A request that was split, because it has more rows than a batch may hold.

    The first part that fails ends the others.

    Args:
        parts: The handles of its parts, in order.

    Attributes:
        parts: As given.
    """

    def __init__(
        self,
        parts: Sequence[QueuedRequest],
        join: Callable[[list[InferResponse]], InferResponse],
    ) -> None:
        self.parts = parts
        self._join = join
        self._failed: QueuedRequest | None = None
        for part in parts:
            part.add_done_callback(self._note_end)

    def _note_end(self, part: QueuedRequest) -> None:
        if self._failed is None and not isinstance(part.answer, InferResponse):
            self._failed = part  # first, because the others end in here as well
            self.cancel()

    def wait(self) -> InferResponse:
        """See `RequestHandle.wait`."""
        self.join()
        if self._failed is not None:
            return self._failed.outcome()
        return self._join([part.outcome() for part in self.parts])

    def join(self, until_ns: int | None = None) -> bool:
        """Sleep until every part has ended.

        Args:
            until_ns: `time.monotonic_ns` at which to give up, or None.

        Returns:
            Whether they have.
        """
        return all(part.join(until_ns) for part in self.parts)

    def cancel(self) -> bool:
        """See `RequestHandle.cancel`."""
        ended = [part.cancel() for part in self.parts]
        return any(ended)

    def done(self) -> bool:
        """See `RequestHandle.done`."""
        return all(part.done() for part in self.parts)

    def add_done_callback(self, callback: Callable[[RequestHandle], object]) -> None:
        """See `RequestHandle.add_done_callback`."""
        left = itertools.count(len(self.parts) - 1, -1)

        def ended(_part: RequestHandle) -> None:
            if next(left) == 0:
                callback(self)

        for part in self.parts:
            part.add_done_callback(ended)
