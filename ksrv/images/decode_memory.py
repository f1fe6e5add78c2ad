"""Reserves the memory of images in the memory budget while they are decoded, for decoders in Python.

`native/images/decode/memory.hpp` has the rules of the budget. Each image is one reservation: `take` before it is
decoded, `give_back` afterwards.
"""

from collections.abc import Callable

from ksrv._native.images import decode_memory as native
from ksrv._native.memory.memory_budget import PROCESS, SMALL_REQUEST
from ksrv.limits import show_limit


class NoRoom(Exception):
    """The memory budget has no room for an image. The text is the predicate of a sentence about the image."""


class TooLarge(NoRoom):
    """An image needs more than the whole memory budget."""


def take(nbytes: int, ended: Callable[[], bool] | None = None) -> bool:
    """Reserve an image's bytes, waiting for other images if that helps.

    Args:
        nbytes: The bytes that decoding takes.
        ended: Returns whether the image's request has ended.

    Returns:
        Whether the bytes are reserved; False if the image's request has ended.

    Raises:
        NoRoom: The budget is full, and no other image that is being decoded will free memory.
    """
    room = native.take(nbytes)  # waits a short time before it returns WAIT
    while room == native.WAIT:
        if ended is not None and ended():
            return False
        room = native.take(nbytes)
    if room == native.TAKEN:
        return True
    bound = PROCESS.most(small=nbytes <= SMALL_REQUEST)
    if room == native.TOO_LARGE:
        raise TooLarge(
            f"needs {nbytes} bytes while it is decoded, above the"
            f" {show_limit('in_flight', bound)} of all requests together"
        )
    raise NoRoom(
        f"needs {nbytes} bytes while it is decoded; with them the requests in flight"
        f" would pass the {show_limit('in_flight', bound)}"
    )


def give_back(nbytes: int) -> None:
    """Return bytes that `take` reserved."""
    native.give_back(nbytes)
