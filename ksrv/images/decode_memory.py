"""The memory of images while they are decoded: it counts among the bytes in flight.

Each image reserves its bytes before its decoder starts and gives it back when it lies in its row.
Where the bytes do not suffice while other images of the process are decoded, it waits for one of
those, because they soon give theirs back; where none is, it is refused.
"""

import threading
from collections.abc import Callable

from ksrv._native.memory.memory_budget import PROCESS, SMALL_REQUEST
from ksrv.limits import show_limit

_LOOK_SECONDS = 0.05


class NoRoom(Exception):
    """The bytes in flight leave no room for an image; the text goes behind a name for it."""


class TooLarge(NoRoom):
    """An image that needs more than all bytes in flight may be."""


class DecodingMemory:
    """The bytes of the images that this process is decoding."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._images = 0
        self._waiting = 0

    def take(self, nbytes: int, ended: Callable[[], bool] | None = None) -> bool:
        """Reserve an image's bytes, waiting for other images where that helps.

        Args:
            nbytes: The bytes that decoding takes.
            ended: Tells whether the image's request has ended.

        Returns:
            Whether they are reserved; False when the image's request has ended.

        Raises:
            NoRoom: There is no room, and no other image will make some.
        """
        small = nbytes <= SMALL_REQUEST
        bound = PROCESS.most(small=small)
        if nbytes > bound:
            raise TooLarge(
                f"needs {nbytes} bytes while it is decoded, above the"
                f" {show_limit('in_flight', bound)} of all requests together"
            )
        with self._changed:
            while not PROCESS.reserve(nbytes, small=small):
                if self._images == 0:
                    raise NoRoom(
                        f"needs {nbytes} bytes while it is decoded; with them the requests in flight"
                        f" would pass the {show_limit('in_flight', bound)}"
                    )
                self._waiting += 1
                try:
                    self._changed.wait(_LOOK_SECONDS)
                finally:
                    self._waiting -= 1
                if ended is not None and ended():
                    return False
            self._images += 1
        return True

    def give_back(self, nbytes: int) -> None:
        """Give back what `take` reserved."""
        with self._changed:
            PROCESS.give_back(nbytes)
            self._images -= 1
            if self._waiting:
                self._changed.notify_all()


decoding = DecodingMemory()
"""The process's own."""
