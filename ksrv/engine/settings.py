"""The settings of the whole engine. The settings of a model are in its `ModelSource`."""

from typing import Literal

import msgspec

from ksrv.engine.available_memory import bytes_in_flight
from ksrv.limits import Limits
from ksrv.machine.cgroups import usable_cores

ModelControl = Literal["auto", "none", "poll", "explicit", "lazy"]
"""By which ways models are loaded and unloaded. "auto": calls and polling; "none": nothing; "poll": only polling;
"explicit": only calls; "lazy": as "auto", and the first request for a model loads it."""

PARALLEL_LOADS = 4
"""Models that are loaded at a time, unless the settings name a number."""


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The engine's settings.

    Attributes:
        limits: Bounds on requests.
        ready_when: "all": the server is ready if every required model serves; "any": if any model serves.
        watch_seconds: The seconds between two scans of the repository for changes; 0 for no scans.
        cores: CPU cores that the instances of a model share, and that images are decoded on; 0 for
            all cores that the process may use.
        drain_seconds: How long an old version may take to finish its accepted requests.
        run_on_caller: Whether a handler that has proven quick may run on the thread that brings a
            request, which saves two changes of thread for each.
        parallel_loads: How many model versions are loaded at a time.
        debug: Whether handlers' errors hold the end of the traceback, and requests may ask for a profile.
        model_control: See `ModelControl`.
        models_memory: Bytes that the models of a worker may hold with `model_control="lazy"`; 0 for no bound.
        workers: How many processes serve the same models, any of which may get a request.
        notes: The folder that these processes share for notes of what handlers write; "" for a folder of this engine.
    """

    limits: Limits = Limits()
    ready_when: Literal["all", "any"] = "all"
    watch_seconds: float = 0.0
    cores: int = 0
    drain_seconds: float = 60.0
    run_on_caller: bool = True
    parallel_loads: int = PARALLEL_LOADS
    debug: bool = False
    model_control: ModelControl = "auto"
    models_memory: int = 0
    workers: int = 1
    notes: str = ""

    def usable_cores(self) -> int:
        """Return how many cores the instances of a model share."""
        return self.cores or usable_cores()

    def bytes_in_flight(self) -> int:
        """Return the most bytes that all accepted requests may take: the setting, or else a quarter of the memory."""
        return bytes_in_flight(self.limits)
