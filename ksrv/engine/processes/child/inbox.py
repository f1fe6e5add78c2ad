"""The messages that a handler process receives, for whichever of its threads waits for them."""

import threading
from collections.abc import Callable
from contextlib import suppress

from ksrv._native.process.channel import ChannelClosed, ChannelError, Frame, Link

Take = Callable[[Frame], None]


class Inbox:
    """The messages of the worker.

    Of the threads that wait, one receives, for all of them: no message changes threads where one waits alone.

    Args:
        link: The link, whose messages nothing else receives meanwhile.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._sleepers = 0
        self._is_receiving = False
        self._takers: dict[int, Take] = {}
        self._frames: list[Frame] = []
        self._failure: ChannelClosed | ChannelError | None = None

    def on(self, kind: int, take: Take) -> None:
        """Have a function take each message of a kind, on the thread that receives it."""
        self._takers[kind] = take

    def take(self, wanted: Callable[[Frame], bool]) -> Frame:
        """Wait for a message.

        Args:
            wanted: Tells whether a message is the one.

        Raises:
            ChannelClosed: No message will come any more.
            ChannelError: A message does not add up.
        """
        found: list[Frame] = []

        def look() -> bool:
            for place, frame in enumerate(self._frames):
                if wanted(frame):
                    found.append(self._frames.pop(place))
                    return True
            return False

        self.wait_for(look)
        return found[0]

    def wait_for(self, ended: Callable[[], bool]) -> None:
        """Receive messages, or wait while another thread does, until a condition holds.

        Args:
            ended: The condition; asked again after each message.

        Raises:
            ChannelClosed: No message will come any more.
            ChannelError: A message does not add up.
        """
        with self._lock:
            while not ended():
                if self._failure is not None:
                    raise self._failure
                if self._is_receiving:
                    self._sleep()
                else:
                    self._receive_one()

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

    def _sleep(self) -> None:
        self._sleepers += 1
        try:
            self._changed.wait()
        finally:
            self._sleepers -= 1

    def _receive_one(self, deadline_ns: int | None = None) -> None:
        """Receive a message without the lock, which the caller holds."""
        self._is_receiving = True
        self._lock.release()
        try:
            self._receive(deadline_ns)
        except (ChannelClosed, ChannelError) as error:
            self._failure = error
        finally:
            self._lock.acquire()
            self._is_receiving = False
            if self._sleepers:
                self._changed.notify_all()

    def _receive(self, deadline_ns: int | None) -> None:
        frame = self._link.receive(deadline_ns)
        take = self._takers.get(frame.kind)
        if take is not None:
            take(frame)
            return
        with self._lock:
            self._frames.append(frame)

    def wake(self) -> None:
        """Have the threads that wait look at their conditions again."""
        with self._lock:
            if self._sleepers:
                self._changed.notify_all()
