"""The handles that `Engine.submit` returns, see `RequestHandle`: to wait, to cancel, to get a callback."""

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from concurrent.futures import wait as wait_for
from contextlib import suppress

from ksrv._native.queue.request_handle import NativeHandle
from ksrv.engine.requests.refusals import deadline_exceeded
from ksrv.errors import Cancelled, KsrvError
from ksrv.request import InferResponse, RequestHandle

MILLISECOND = 1_000_000


class QueuedRequest(NativeHandle):
    """A request in the native queue."""

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
    """A request that was split, because it has more rows than fit into a batch.

    The first part that fails cancels the other parts.

    Args:
        parts: The handles of the parts, in the order of their rows.
        join: Joins the answers of the parts.
        count: Called once when all parts have ended, with the part that failed, or None, and the answer or the error.
    """

    def __init__(
        self,
        parts: Sequence[QueuedRequest],
        join: Callable[[list[InferResponse]], InferResponse],
        count: Callable[[QueuedRequest | None, InferResponse | KsrvError], None],
    ) -> None:
        self.parts = parts
        self._join = join
        self._count = count
        self._failed: QueuedRequest | None = None
        self._lock = threading.Lock()
        self._outcome: InferResponse | KsrvError | None = None
        self.add_done_callback(lambda _: self._ended())
        for part in parts:
            part.add_done_callback(self._note_end)

    def _note_end(self, part: QueuedRequest) -> None:
        if self._failed is None and not isinstance(part.answer, InferResponse):
            # Before `cancel`, because that calls this method for the other parts.
            self._failed = part
            self.cancel()

    def _ended(self) -> InferResponse | KsrvError:
        """Return the answer or the error of the whole request. The first call joins and counts it."""
        with self._lock:
            if self._outcome is None:
                answers = [part.answer for part in self.parts]
                bad = (part for part in self.parts if not isinstance(part.answer, InferResponse))
                failed = self._failed or next(bad, None)
                try:
                    self._outcome = self._join(answers) if failed is None else failed.outcome()
                except KsrvError as error:
                    self._outcome = error
                self._count(failed, self._outcome)
            return self._outcome

    def wait(self) -> InferResponse:
        """See `RequestHandle.wait`."""
        self.join()
        outcome = self._ended()
        if isinstance(outcome, KsrvError):
            raise outcome.with_traceback(None)
        return outcome

    def join(self, until_ns: int | None = None) -> bool:
        """Sleep until every part has ended.

        Args:
            until_ns: `time.monotonic_ns` at which to give up, or None.

        Returns:
            Whether every part has ended.
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


class FutureHandle:
    """A request whose answer is in a future: from the response cache, or from a thread that loads a model first."""

    def __init__(self, answer: Future[InferResponse]) -> None:
        self._answer = answer

    def wait(self) -> InferResponse:
        """See `RequestHandle.wait`."""
        try:
            return self._answer.result()
        except CancelledError:
            raise Cancelled("the call was cancelled") from None

    def join(self, until_ns: int) -> bool:
        """Sleep until the call has ended, or until a time of `time.monotonic_ns`; return whether it has ended."""
        return bool(wait_for((self._answer,), (until_ns - time.monotonic_ns()) / 1e9).done)

    def cancel(self) -> bool:
        """See `RequestHandle.cancel`. A load that has begun is not cancelled."""
        return not self._answer.done() and self._answer.cancel()

    def done(self) -> bool:
        """See `RequestHandle.done`."""
        return self._answer.done()

    def add_done_callback(self, callback: Callable[[RequestHandle], object]) -> None:
        """See `RequestHandle.add_done_callback`."""

        def ended(_: "Future[InferResponse]") -> None:
            with suppress(RuntimeError):  # the event loop that waited is closed
                callback(self)

        self._answer.add_done_callback(ended)
