"""The messages that a handler process receives, for whichever of its threads waits for them."""

import threading
from collections.abc import Callable

from ksrv._native.ipc.channel import ChannelClosed, ChannelError, Frame, Link

Take = Callable[[Frame], None]


class Inbox:
    """The messages of the worker.

    Of the threads that wait, one receives, for all of them: no message changes threads where one waits alone.

    Args:
        link: The link, whose messages nothing else receives meanwhile.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._changed = threading.Condition()
        self._is_receiving = False
        self._takers: dict[int, Take] = {}
        self._frames: list[Frame] = []
        self._failure: ChannelClosed | ChannelError | None = None

    def on(self, kind: int, take: Take) -> None:
        """Have a function take each message of a kind, on the thread that receives it.

        Args:
            kind: The kind.
            take: The function.
        """
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
        changed = self._changed
        with changed:
            while not ended():
                if self._failure is not None:
                    raise self._failure
                if self._is_receiving:
                    changed.wait()
                    continue
                self._is_receiving = True
                changed.release()
                try:
                    self._receive()
                except (ChannelClosed, ChannelError) as error:
                    self._failure = error
                finally:
                    changed.acquire()
                    self._is_receiving = False
                    changed.notify_all()

    def _receive(self) -> None:
        frame = self._link.receive()
        take = self._takers.get(frame.kind)
        if take is not None:
            take(frame)
            return
        with self._changed:
            self._frames.append(frame)

    def wake(self) -> None:
        """Have the threads that wait look at their conditions again."""
        with self._changed:
            self._changed.notify_all()
