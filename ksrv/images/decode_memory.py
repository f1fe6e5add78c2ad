"""The memory of images while they are decoded: it counts among the bytes in flight.

`native/images/decode/memory.hpp` has the rules. Here is what decoders in Python need of it: one
reservation for each image, and the sentences of a refusal.
"""

from collections.abc import Callable

from ksrv._native.images import decode_memory as native
from ksrv._native.memory.memory_budget import PROCESS, SMALL_REQUEST
from ksrv.limits import show_limit


class NoRoom(Exception):
    """The bytes in flight leave no room for an image; the text goes behind a name for it."""


class TooLarge(NoRoom):
    """An image that needs more than all bytes in flight may be."""


def take(nbytes: int, ended: Callable[[], bool] | None = None) -> bool:
    """Reserve an image's bytes, waiting for other images if that helps.

    Args:
        nbytes: The bytes that decoding takes.
        ended: Tells whether the image's request has ended.

    Returns:
        Whether they are reserved; False when the image's request has ended.

    Raises:
        NoRoom: No room is left, and no other image will make room.
    """
    room = native.take(nbytes)
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
    """Give back what `take` reserved."""
    native.give_back(nbytes)
