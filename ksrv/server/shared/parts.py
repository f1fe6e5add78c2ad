"""The parts that the front ends of a worker share."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ksrv._native.memory.memory_budget import MemoryBudget
from ksrv.server.changeable_settings import ChangeableSettings
from ksrv.server.credentials import Access
from ksrv.server.http.byte_budget import process_budget
from ksrv.server.memory_regions import SharedMemory, shared_memory_of
from ksrv.server.settings import ServerSettings
from ksrv.server.shared.statistics import ServerStatistics

if TYPE_CHECKING:
    from ksrv.engine.engine import Engine


@dataclass(frozen=True, slots=True)
class ServerParts:
    """The parts that REST and gRPC share.

    Attributes:
        engine: Runs the requests.
        settings: The server's settings.
        access: The checks of callers.
        budget: The bytes that requests may hold together.
        shared_memory: The clients' regions; None if shared memory is off.
        statistics: The statistics of all workers.
        changeable: The settings that calls may change.
    """

    engine: "Engine"
    settings: ServerSettings
    access: Access
    budget: MemoryBudget
    shared_memory: SharedMemory | None
    statistics: ServerStatistics
    changeable: ChangeableSettings


def server_parts(
    engine: "Engine",
    settings: ServerSettings,
    access: Access | None = None,
    statistics: ServerStatistics | None = None,
    changeable: ChangeableSettings | None = None,
) -> ServerParts:
    """Return the parts for an engine and settings.

    Args:
        access: The checks of callers; made from the settings if left out.
        statistics: The statistics of all workers; the engine's if left out.
        changeable: Changes the settings in every worker; in this process alone if left out.
    """
    return ServerParts(
        engine,
        settings,
        access or Access(settings),
        process_budget(settings.limits),
        shared_memory_of(settings),
        statistics or ServerStatistics(engine),
        changeable or ChangeableSettings(),
    )
