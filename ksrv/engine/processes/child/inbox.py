"""Receives the messages of the worker, for all threads of a handler process.

Results of calls and messages about clients are handled by the functions that `on` registers, on the thread that
receives them. Messages without such a function, or that a function passes to `keep`, wait for the main thread.
"""

import logging
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from threading import Condition, Lock

from ksrv.engine.processes.link import ChannelClosed, ChannelError, Frame, Link

log = logging.getLogger("ksrv.handler")

Handle = Callable[[Frame], None]


class Inbox:
    """The messages of the worker on one link.

    One waiting thread at a time receives for all. Usually only one thread waits: it then receives its message without
    being woken by another thread.

    Args:
        link: The link. Nothing else receives messages from it.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._lock = Lock()
        self._changed = Condition(self._lock)
        self._sleepers = 0  # threads that wait while another thread receives
        self._is_receiving = False
        self._handlers: dict[int, Handle] = {}
        self._frames: deque[Frame] = deque()
        self._failure: ChannelClosed | ChannelError | None = None

    def on(self, kind: int, handle: Handle) -> None:
        """Register the function that handles each message of a kind, on the thread that receives it."""
        self._handlers[kind] = handle

    def next_kept(self) -> Frame:
        """Wait for the next kept message. Only for the main thread.

        Raises:
            ChannelClosed: No message will come any more.
            ChannelError: A message is malformed.
        """
        self.wait_for(lambda: bool(self._frames))
        return self._frames.popleft()

    def poll_kept(self) -> Frame | None:
        """Return the next kept message, or None if none has arrived. Only for the main thread."""
        return self._frames.popleft() if self._frames else None

    def wait_for(self, ended: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Receive messages, or wait while another thread does, until `ended` returns True.

        Args:
            ended: The condition. Called with the lock held, first at once, then after each message.

        Returns:
            Whether the condition is true; False after `timeout_s` seconds.

        Raises:
            ChannelClosed: No message will come any more.
            ChannelError: A message is malformed.
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

    def receive_arrived(self) -> None:
        """Receive the messages that have arrived, without waiting, unless another thread receives.

        Raises:
            ChannelClosed: No message will come any more.
            ChannelError: A message is malformed.
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
            # The message is lost, and a batch may wait for it forever. So all waits fail, and the process ends.
            log.error("a message of the worker cannot be handled", exc_info=error)
            self._failure = ChannelError(
                f"a message of the worker cannot be handled: {type(error).__name__}"
            )
        finally:
            self._lock.acquire()
            self._is_receiving = False
            if self._sleepers:
                self._changed.notify_all()

    def _receive(self, deadline_ns: int | None) -> None:
        frame = self._link.receive(deadline_ns)
        self._handlers.get(frame.kind, self.keep)(frame)

    def keep(self, frame: Frame) -> None:
        """Keep a message for the main thread. Also called by functions registered with `on`."""
        with self._lock:
            self._frames.append(frame)

    def wake(self) -> None:
        """Let waiting threads check their conditions again."""
        with self._lock:
            if self._sleepers:
                self._changed.notify_all()
