"""The answers of one streaming request, between the handler that makes them and the front end that sends them.

A stream keeps few answers: if the client reads slowly, the handler waits. So the memory of a stream
does not grow with its length. Large answers that wait are counted in the memory budget, like answers that are
being sent.
"""

import sys
import threading
import time
from collections import deque
from collections.abc import Callable

from ksrv._native.memory.memory_budget import PROCESS, AnswerBytes
from ksrv.request import InferResponse

MOST_WAITING = 64
"""Answers that wait for a client at the same time."""
MOST_WAITING_BYTES = 1 << 20
"""Bytes of tensors that wait for a client; one answer may be larger."""
MOST_BEHIND = 256
"""Answers that wait for a client where a handler sends them without waiting."""
MOST_BEHIND_BYTES = 8 << 20
"""Bytes of tensors that wait then; four answers may be larger."""
SMALL_ANSWER = 64 * 1024
"""Bytes of tensors up to which an answer is not counted in the memory budget; few of them wait."""


class ResponseStream:
    """A bounded queue of answers, with one reader.

    Args:
        notify: Called when there is an answer more, or the request has ended; it must not block.

    Attributes:
        ended: Whether no further answer will arrive, because the request has ended or its reader has gone.
        chunked: Whether the handler answers in chunks, however many: what ends the request then holds nothing.
    """

    def __init__(self, notify: Callable[[], object] | None = None) -> None:
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._asleep = 0  # threads that wait for a change
        self._gathered = threading.Condition(self._lock)
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
            Whether the memory budget has room for it.
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
        """Say that the request has ended."""
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
        """Tell whether another answer may come: the client keeps up, or the request has ended."""
        return self.ended or (
            len(self._waiting) < MOST_WAITING and self._nbytes < MOST_WAITING_BYTES
        )

    def is_far_behind(self) -> bool:
        """Tell whether so much waits for the client that no handler may send it more."""
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
        """Sleep until there is room.

        Args:
            until_ns: `time.monotonic_ns` at which to give up.

        Returns:
            Whether there is.
        """
        with self._lock:
            while not self.has_room():
                left = (until_ns - time.monotonic_ns()) / 1e9
                if left <= 0:
                    return False
                self._sleep(left)
            return True

    def call_with_room(self, callback: Callable[[], object]) -> None:
        """Have a function called once there is room; at once if there is.

        Args:
            callback: Called on the thread that makes room; it must not block.
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
            The answer; None if none has arrived in time, and after the last.
        """
        taken = self._take(timeout, 1)
        return taken[0] if taken else None

    def take_all(self, timeout: float | None = None) -> list[InferResponse]:
        """Take every answer that waits, waiting for the first; see `take`.

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
        """Let answers come together: until the handler would have to wait, the last has come, or the time is over."""
        with self._lock:
            if self.ended or not self.has_room():
                return
            self._gathers = True
            try:
                self._gathered.wait(seconds)
            finally:
                self._gathers = False

    def give_up(self) -> None:
        """Drop the answers that wait, and all later answers, because nobody takes them any more.

        Their bytes go back to the memory budget at once, whoever still refers to the stream.
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
        if self._asleep:  # to ask a condition without waiters takes longer than to append an answer
            self._changed.notify_all()

    @property
    def waiting(self) -> bool:
        """Whether an answer waits to be taken."""
        return bool(self._waiting)

    @property
    def finished(self) -> bool:
        """Whether every answer was taken and no further answer will arrive."""
        return self.ended and not self._waiting


def _nbytes(response: InferResponse) -> int:
    return sum([tensor.nbytes for tensor in response.outputs])
