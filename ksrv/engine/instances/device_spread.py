"""Chooses the GPU of each model's first instance; the further instances follow on the next GPUs.

The instances of all models are spread over the devices in turn, so that ten models with one
instance each do not share the first GPU. A model keeps its devices when it is loaded anew.
"""

import threading

from msgspec.structs import replace

from ksrv.model.config import ModelSource

SPREAD = ("auto", "cuda", "tensorrt", "xpu")
"""The values of `device` that name no single device."""


class DeviceSpread:
    """Counts the instances of the models that choose among several devices."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, str], int] = {}
        self._next = 0
        self._lock = threading.Lock()

    def place(self, source: ModelSource) -> ModelSource:
        """Return the source with `first_device` set: the place of its first device, counted without end.

        `ksrv.handlers.devices.choice` takes it modulo the number of devices.
        """
        config = source.config
        if config is None or config.device not in SPREAD:
            return source
        with self._lock:
            key = source.name, source.version
            if key not in self._first:
                self._first[key] = self._next
                self._next += config.instances
            return replace(source, first_device=self._first[key])
