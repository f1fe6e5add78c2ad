"""Decodes requests whose images take long, so that the model's other clients need not wait for them.

Normally the thread of an instance decodes the images of the requests that it takes. If a request had
many million pixels, or a JPEG with many scans, all other requests would wait although the handler is
idle. So a separate thread for each model decodes such requests, one after the other. It queues each
request again for the instances when its images are decoded.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable

from ksrv.engine.requests.handle import QueuedRequest

log = logging.getLogger("ksrv.engine")


class DecodeThread:
    """The thread that decodes these requests. It is started for the first request and ends when none is left.

    Args:
        most: The most groups of requests that may wait. A group was taken from the queue together.
        decode: Decodes the images of a group, and queues the requests again.
    """

    def __init__(
        self, model: str, most: int, decode: Callable[[list[QueuedRequest]], None]
    ) -> None:
        self._model = model
        self._most = most
        self._decode = decode
        self._changed = threading.Condition()
        self._waiting: deque[list[QueuedRequest]] = deque()
        self._works = False

    def take(self, handles: list[QueuedRequest]) -> bool:
        """Take over a group of requests. Return False if too many wait, or no thread can be started."""
        with self._changed:
            if len(self._waiting) >= self._most:
                return False
            if not self._works:
                name = f"ksrv-{self._model}-decode"
                try:
                    threading.Thread(target=self._live, name=name, daemon=True).start()
                except RuntimeError as error:
                    log.error(
                        "the images of a request to %s are not decoded: %s", self._model, error
                    )
                    return False
                self._works = True
            self._waiting.append(handles)
        return True

    def wait(self) -> bool:
        """Wait until the thread has ended; return whether it was running."""
        with self._changed:
            found = self._works
            self._changed.wait_for(lambda: not self._works)
            return found

    def _live(self) -> None:
        while True:
            with self._changed:
                if not self._waiting:
                    self._works = False
                    self._changed.notify_all()
                    return
                handles = self._waiting.popleft()
            try:
                self._decode(handles)
                del handles
            except BaseException:  # instances wait for this thread when they end, so it must go on
                log.exception("a request of the model %s cannot be decoded", self._model)
