"""The queue of the answers of one streaming request, between the handler's thread and the front end that sends them.

The queue is short: if the client reads slowly, the handler waits. So the memory of a stream does not grow with its
length. Large answers in the queue are counted in the memory budget, like answers that are being sent.
"""

import sys
import threading
import time
from collections import deque
from collections.abc import Callable

from ksrv._native.memory.memory_budget import PROCESS, AnswerBytes
from ksrv.request import InferResponse

MOST_WAITING = 64
"""The most answers in the queue before the handler has to wait."""
MOST_WAITING_BYTES = 1 << 20
"""The most bytes of tensors in the queue before the handler has to wait. One answer may be larger."""
MOST_BEHIND = 256
"""The most answers in the queue for a handler that cannot wait, because its event loop has other batches."""
MOST_BEHIND_BYTES = 8 << 20
"""The most bytes of tensors in the queue for such a handler; up to four answers may be larger."""
SMALL_ANSWER = 64 * 1024
"""Answers with up to so many bytes of tensors are not counted in the memory budget, because few are in the queue."""


class ResponseStream:
    """A bounded queue of answers, with one reader.

    Args:
        notify: Called after each new answer, and when the request has ended; it must not block.

    Attributes:
        ended: Whether no further answer will arrive, because the request has ended or its client has left.
        chunked: Whether the handler answers in chunks. Then the final response of the request has no outputs.
    """

    def __init__(self, notify: Callable[[], object] | None = None) -> None:
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._asleep = 0  # threads that wait for `_changed`
        self._gathered = threading.Condition(self._lock)  # for `gather`
        self._gathers = False
        self._waiting: deque[tuple[InferResponse, AnswerBytes | None]] = deque()
        self._nbytes = 0
        self._taken_ns = time.monotonic_ns()
        self._notify = notify
        self._on_room: list[Callable[[], object]] = []
        self.ended = False
        self.chunked = False

    # ---- the handler's side -----------------------------------------------------------------

    def put(self, response: InferResponse) -> bool:
        """Append an answer, without waiting; drop it if the stream has ended.

        Returns:
            Whether the memory budget had room for the answer.
        """
        nbytes = _nbytes(response)
        held = PROCESS.reserve_answer(nbytes) if nbytes > SMALL_ANSWER else None
        if held is None and nbytes > SMALL_ANSWER:
            return False
        with self._lock:
            if self.ended:
                return True
            self._waiting.append((response, held))
            self._nbytes += nbytes
            self._wake()
            if self._gathers and not self.has_room():
                self._gathered.notify()
        if self._notify is not None:
            self._notify()
        return True

    def end(self) -> None:
        """Note that the request has ended, and wake everyone who waits."""
        with self._lock:
            self.ended = True
            self._wake()
            self._gathered.notify()
            callbacks, self._on_room = self._on_room, []
        for callback in callbacks:
            callback()
        if self._notify is not None:
            self._notify()

    def has_room(self) -> bool:
        """Tell whether the handler may append another answer: the client keeps up, or the request has ended."""
        return self.ended or (
            len(self._waiting) < MOST_WAITING and self._nbytes < MOST_WAITING_BYTES
        )

    def is_far_behind(self) -> bool:
        """Tell whether the queue is so long that even a handler that cannot wait must not append more."""
        waiting = len(self._waiting)
        return not self.ended and (
            waiting >= MOST_BEHIND or (waiting >= 4 and self._nbytes >= MOST_BEHIND_BYTES)
        )

    def taken_since(self, time_ns: int) -> bool:
        """Tell whether the client has taken an answer since a point in time.

        Args:
            time_ns: On the clock of `time.monotonic_ns`.
        """
        return self._taken_ns >= time_ns

    def wait_room(self, until_ns: int) -> bool:
        """Sleep until the queue has room.

        Args:
            until_ns: `time.monotonic_ns` at which to give up.

        Returns:
            Whether the queue has room.
        """
        with self._lock:
            while not self.has_room():
                left = (until_ns - time.monotonic_ns()) / 1e9
                if left <= 0:
                    return False
                self._sleep(left)
            return True

    def call_with_room(self, callback: Callable[[], object]) -> None:
        """Have a function called once the queue has room; immediately if it has room now.

        Args:
            callback: Called on the thread that takes answers or ends the request; it must not block.
        """
        with self._lock:
            if not self.has_room():
                self._on_room.append(callback)
                return
        callback()

    # ---- the front end's side ---------------------------------------------------------------

    def take(self, timeout: float | None = None) -> InferResponse | None:
        """Take the next answer, waiting for it.

        Args:
            timeout: Seconds to wait at most; None for as long as the request takes.

        Returns:
            The answer; None if no answer arrived in time, and after the last answer.
        """
        taken = self._take(timeout, 1)
        return taken[0] if taken else None

    def take_all(self, timeout: float | None = None) -> list[InferResponse]:
        """Take all answers in the queue; if it is empty, wait for the first. See `take`.

        Args:
            timeout: Seconds to wait at most; None for as long as the request takes.
        """
        return self._take(timeout, sys.maxsize)

    def _take(self, timeout: float | None, most: int) -> list[InferResponse]:
        callbacks: list[Callable[[], object]] = []
        with self._lock:
            if not self._waiting and not self.ended:
                self._sleep(timeout)
            taken = [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]
            if taken:
                self._taken_ns = time.monotonic_ns()
            self._nbytes -= sum(_nbytes(response) for response, _ in taken)
            if self.has_room():
                self._wake()
                callbacks, self._on_room = self._on_room, []
        for _, held in taken:
            if held is not None:
                held.close()
        for callback in callbacks:
            callback()
        return [response for response, _ in taken]

    def gather(self, seconds: float) -> None:
        """Wait for several answers, so that they are sent together: until the queue is full, the request has ended, or
        the time is over.
        """
        with self._lock:
            if self.ended or not self.has_room():
                return
            self._gathers = True
            try:
                self._gathered.wait(seconds)
            finally:
                self._gathers = False

    def give_up(self) -> None:
        """Drop the answers in the queue and all later answers, because the client has left.

        Their bytes return to the memory budget at once, even if something still refers to the stream.
        """
        self.end()
        self.take_all(0)

    def _sleep(self, seconds: float | None) -> None:
        self._asleep += 1
        try:
            self._changed.wait(seconds)
        finally:
            self._asleep -= 1

    def _wake(self) -> None:
        if self._asleep:  # `notify_all` without waiters takes longer than to append an answer
            self._changed.notify_all()

    @property
    def waiting(self) -> bool:
        """Whether the queue has an answer."""
        return bool(self._waiting)

    @property
    def finished(self) -> bool:
        """Whether every answer was taken and no further answer will arrive."""
        return self.ended and not self._waiting


def _nbytes(response: InferResponse) -> int:
    return sum([tensor.nbytes for tensor in response.outputs])
