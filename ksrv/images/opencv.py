"""The import of cv2, and the calls of cv2 that need special care: decode, turn and resize.

cv2 reads two environment variables while it is imported, so they are set here, before the first
import, unless the operator has set them: OPENCV_LOG_LEVEL, because codecs would report every damaged
upload on standard error, and OPENCV_IO_MAX_IMAGE_PIXELS, a second check after the header check of
`ksrv._native.images.image_header`. Importing ksrv does not import cv2; the first `load()` does.

libjpeg and libpng print a line for each damaged upload all the same, whatever the log level. In a
process of ksrv's these lines are kept from standard error, and the log has one warning a minute at
most, with their number and the last of them.
"""

import functools
import logging
import os
import threading
import time
from typing import Any

import numpy as np

from ksrv._native.images import codec_stderr
from ksrv.request import Array, Element

PIXEL_WALL = 1 << 28
"""The most pixels that cv2 decodes, whatever the settings allow."""

NO_MEMORY = -4
"""cv2.Error.StsNoMem: the code of a cv2.error if cv2 could not allocate memory."""

NOISE_INTERVAL = 60.0
"""Seconds between two warnings about what codecs print."""

log = logging.getLogger("ksrv.engine")


@functools.cache
def load() -> Any:
    """Import cv2 with ksrv's settings, once."""
    os.environ.setdefault("OPENCV_LOG_LEVEL", "OFF")
    os.environ.setdefault("OPENCV_IO_MAX_IMAGE_PIXELS", str(PIXEL_WALL))
    import cv2

    if _process.owned:
        cv2.setNumThreads(1)
    return cv2


class _Process:
    """Whether `own_process` was called: then ksrv makes the settings of cv2 in this process."""

    owned = False


_process = _Process()


def own_process() -> None:
    """Keep cv2 from starting threads in a process that belongs to ksrv.

    ksrv decodes images in parallel itself, and two pools get into each other's way. The setting is for the whole
    process. A worker calls this when it starts; programs of users that import ksrv do not. It does not import cv2,
    because a server without images never needs it. `load` makes the setting later; if a handler imports cv2 before,
    cv2 reads the variable.
    """
    _process.owned = True
    os.environ["OPENCV_FOR_THREADS_NUM"] = "1"
    if load.cache_info().currsize:
        load().setNumThreads(1)


def decode(element: Element, flags: int) -> Array | None:
    """Decode one encoded picture.

    Args:
        element: The whole file; not empty.
        flags: cv2's IMREAD flags.

    Returns:
        The pixels, [height, width] or [height, width, channels], or None when cv2 cannot read them.
    """
    cv2 = load()
    data = np.frombuffer(element, np.uint8)
    owned = _process.owned
    if owned:
        codec_stderr.begin()
    try:
        pixels = cv2.imdecode(data, flags)
    except cv2.error as error:  # some damage raises, some gives None: both mean the same
        if is_out_of_memory(error):
            raise
        return None
    finally:
        if owned and (said := codec_stderr.end()):
            _noise.note(said)
    return None if pixels is None or pixels.size == 0 else pixels


def is_out_of_memory(error: Exception) -> bool:
    """Tell whether Python or cv2 found no memory."""
    return isinstance(error, MemoryError) or getattr(error, "code", None) == NO_MEMORY


class _Noise:
    """Counts the messages of codecs, and logs one in each interval."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files = 0
        self._next = 0.0

    def note(self, said: bytes) -> None:
        """Log a codec's message about one file."""
        with self._lock:
            self._files += 1
            now = time.monotonic()
            if now < self._next:
                return
            files, self._files, self._next = self._files, 0, now + NOISE_INTERVAL
        # A codec's own words can quote the file, so control characters are escaped.
        words = said.split(b"\n")[0].decode("ascii", "backslashreplace")
        shown = words if words.isprintable() else ascii(words)
        log.warning(
            "codecs complained about %d image(s) since the last such line; the last: %s",
            files,
            shown,
        )


_noise = _Noise()


_FLIPS = {2: 1, 3: -1, 4: 0, 6: 1, 7: -1, 8: 0}
"""For each EXIF orientation the argument of `cv2.flip`. Orientations from 5 on are transposed first."""


def upright(pixels: Array, orientation: int) -> Array:
    """Turn pixels as their EXIF orientation says.

    Args:
        pixels: The picture, which may be overwritten.
        orientation: From 1 to 8.

    Returns:
        The picture as it should be seen.
    """
    cv2 = load()
    if orientation >= 5:
        pixels = cv2.transpose(pixels)
    flip = _FLIPS.get(orientation)
    return pixels if flip is None else cv2.flip(pixels, flip, pixels)


def resize_into(pixels: Array, target: Array, interpolation: int) -> None:
    """Resize with cv2 into `target`.

    Args:
        pixels: [height, width, channels] of a type that cv2 resizes.
        target: [height, width, channels] of the same type, writable.
        interpolation: A cv2.INTER flag.
    """
    cv2 = load()
    height, width, channels = target.shape
    # A single channel has no separate axis in cv2.
    source = pixels[:, :, 0] if channels == 1 else pixels
    placed = target[:, :, 0] if channels == 1 else target
    result = cv2.resize(source, (width, height), dst=placed, interpolation=interpolation)
    # cv2 returns a new array and does not write to dst, if the layout of dst does not suit it.
    if not np.may_share_memory(result, placed):
        placed[...] = result
