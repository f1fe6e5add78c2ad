"""The messages that a handler process receives, for whichever of its threads waits for them."""

import logging
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from threading import Condition, Lock

from ksrv.engine.processes.link import ChannelClosed, ChannelError, Frame, Link

log = logging.getLogger("ksrv.handler")

Take = Callable[[Frame], None]


class Inbox:
    """The messages of the worker.

    Of the threads that wait, one receives, for all of them: no message changes threads where one waits alone.

    Args:
        link: The link, whose messages nothing else receives meanwhile.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._lock = Lock()
        self._changed = Condition(self._lock)
        self._sleepers = 0
        self._is_receiving = False
        self._takers: dict[int, Take] = {}
        self._frames: deque[Frame] = deque()
        self._failure: ChannelClosed | ChannelError | None = None

    def on(self, kind: int, take: Take) -> None:
        """Have a function take each message of a kind, on the thread that receives it."""
        self._takers[kind] = take

    def take(self) -> Frame:
        """Wait for the next message that is kept; for the main thread alone.

        Raises:
            ChannelClosed: No message will come any more.
            ChannelError: A message does not add up.
        """
        self.wait_for(lambda: bool(self._frames))
        return self._frames.popleft()

    def taken(self) -> Frame | None:
        """Return the next message that was received, as `take` does, or None."""
        return self._frames.popleft() if self._frames else None

    def wait_for(self, ended: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Receive messages, or wait while another thread does, until `ended` returns True.

        Args:
            ended: The condition; asked again after each message.

        Returns:
            Whether it returned True; False after `timeout_s` seconds.

        Raises:
            ChannelClosed: No message will come any more.
            ChannelError: A message does not add up.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        with self._lock:
            while not ended():
                if self._failure is not None:
                    raise self._failure
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    return False
                if self._is_receiving:
                    self._sleep(left)
                else:
                    with suppress(TimeoutError):
                        self._receive_one(None if until is None else int(until * 1e9))
        return True

    def receive_waiting(self) -> None:
        """Receive the messages that have come, unless another thread receives.

        Raises:
            ChannelClosed: No message will come any more.
            ChannelError: A message does not add up.
        """
        with self._lock, suppress(TimeoutError):
            while not self._is_receiving and self._failure is None:
                self._receive_one(0)
        if self._failure is not None:
            raise self._failure

    def _sleep(self, timeout_s: float | None) -> None:
        self._sleepers += 1
        try:
            self._changed.wait(timeout_s)
        finally:
            self._sleepers -= 1

    def _receive_one(self, deadline_ns: int | None) -> None:
        """Receive a message. The caller has the lock, which is released meanwhile."""
        self._is_receiving = True
        self._lock.release()
        try:
            self._receive(deadline_ns)
        except TimeoutError:
            raise
        except (ChannelClosed, ChannelError) as error:
            self._failure = error
        except Exception as error:
            # The message is lost, and with it perhaps the result that a batch waits for: nothing is waited for any more.
            log.error("a message of the worker cannot be taken", exc_info=error)
            self._failure = ChannelError(
                f"a message of the worker cannot be taken: {type(error).__name__}"
            )
        finally:
            self._lock.acquire()
            self._is_receiving = False
            if self._sleepers:
                self._changed.notify_all()

    def _receive(self, deadline_ns: int | None) -> None:
        frame = self._link.receive(deadline_ns)
        take = self._takers.get(frame.kind)
        if take is None:
            self.keep(frame)
        else:
            take(frame)

    def keep(self, frame: Frame) -> None:
        """Keep a message for the main thread: one that no function takes, or whose function gives it on."""
        with self._lock:
            self._frames.append(frame)

    def wake(self) -> None:
        """Have the threads that wait look at their conditions again."""
        with self._lock:
            if self._sleepers:
                self._changed.notify_all()
