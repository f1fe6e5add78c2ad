"""Which of several GPUs the instances of each model begin with.

The instances of all models go to one device after the other, so that ten models of
one instance each do not share the first GPU. A model keeps its place when it is loaded anew.
"""

import threading

from msgspec.structs import replace

from ksrv.model.config import ModelSource

SPREAD = ("auto", "cuda", "xpu")
"""The devices without a number."""


class DeviceSpread:
    """Counts the instances that choose among several devices."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, str], int] = {}
        self._next = 0
        self._lock = threading.Lock()

    def place(self, source: ModelSource) -> ModelSource:
        """Return a source whose instances begin with the next device."""
        config = source.config
        if config is None or config.device not in SPREAD:
            return source
        with self._lock:
            key = source.name, source.version
            if key not in self._first:
                self._first[key] = self._next
                self._next += config.instances
            return replace(source, first_device=self._first[key])
