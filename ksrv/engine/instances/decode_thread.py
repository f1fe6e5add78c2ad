"""Decodes requests whose images take long, so that the model's other clients need not wait for them.

An instance decodes the images of the requests that it takes, and the next requests wait for that. A
request of many million pixels, or of a JPEG with many scans, would so keep all clients from a model
whose handler is idle. A separate thread for each model decodes such requests, one after the other,
and queues each again for the instances when its images are decoded.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable

from ksrv.engine.requests.handle import QueuedRequest

log = logging.getLogger("ksrv.engine")


class DecodeThread:
    """The thread that decodes such requests; it lives while there is one.

    Args:
        most: Groups of requests that may wait.
        decode: Decodes the images of requests, and queues the requests again.
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
        """Take over requests of one group; return False where too many wait, or the system has no thread."""
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
        """Wait until no request is left here; return whether there was one."""
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
