"""The parts that the front ends of a worker share."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from ksrv.errors import NotImplementedByKsrv

if TYPE_CHECKING:  # so that `ksrv.dialects.dialect` can import this module cheaply
    from ksrv._native.memory.memory_budget import MemoryBudget
    from ksrv.engine.engine import Engine
    from ksrv.protocol.shared_memory import SharedMemory
    from ksrv.server.credentials import Access
    from ksrv.server.settings import ServerSettings
    from ksrv.server.shared.plain_route import PlainRoute
    from ksrv.server.shared.statistics import ServerStatistics


class SettingChange(msgspec.Struct):
    """A change of a setting while the server runs, by a call of a dialect.

    Attributes:
        name: The setting, such as "triton.log".
        model: The model whose setting changes; "" for the whole server.
        value: The new value, in the dialect's form.
    """

    name: str
    model: str
    value: Any


def _refuse_change(change: SettingChange) -> None:
    raise NotImplementedByKsrv("a server without workers cannot change its settings")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerParts:
    """The parts that REST and gRPC share.

    Attributes:
        engine: Runs the requests: `engine.submit`.
        settings: The server's settings.
        access: The tokens, and the limits on callers.
        budget: The memory budget of request bodies.
        statistics: The statistics of all workers.
        shared_memory: The shared memory that requests may name; None if it is off.
        extensions: The protocol's extensions that the server has.
        change_setting: Changes a setting in every worker.
        plain_routes: The routes of plain JSON by path, which dialects add beside the same routes of the app.
    """

    engine: "Engine"
    settings: "ServerSettings"
    access: "Access"
    budget: "MemoryBudget"
    statistics: "ServerStatistics"
    change_setting: Callable[[SettingChange], object] = _refuse_change
    shared_memory: "SharedMemory | None" = None
    extensions: tuple[str, ...] = ()
    plain_routes: "dict[str, PlainRoute]" = field(default_factory=dict)


def server_parts(
    engine: "Engine",
    settings: "ServerSettings",
    access: "Access | None" = None,
    statistics: "ServerStatistics | None" = None,
    **more: Any,
) -> ServerParts:
    """Return the parts for an engine and settings.

    Args:
        access: The checks of callers; made from the settings if left out.
        statistics: The statistics of all workers; the engine's if left out.
        more: Further fields of `ServerParts`.
    """
    from ksrv.server.credentials import Access
    from ksrv.server.http.byte_budget import process_budget
    from ksrv.server.shared.statistics import ServerStatistics

    return ServerParts(
        engine=engine,
        settings=settings,
        access=access or Access(settings),
        budget=process_budget(settings.limits),
        statistics=statistics or ServerStatistics(engine),
        **more,
    )
