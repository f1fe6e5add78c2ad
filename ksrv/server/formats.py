"""The list of other servers' routes. `ksrv.repository.formats` lists the readers of their models."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import falcon

from ksrv._native.memory.memory_budget import MemoryBudget
from ksrv.dialects.torchserve.routes.grpc_calls import torchserve_methods
from ksrv.dialects.torchserve.routes.kserve_v1 import PredictResource
from ksrv.dialects.torchserve.routes.rest import TorchServeRoutes
from ksrv.server.credentials import Access
from ksrv.server.settings import ServerSettings

if TYPE_CHECKING:
    from ksrv.engine.engine import Engine
    from ksrv.server.grpc.services import Method, Services

__all__ = ["PredictResource", "add_routes", "grpc_methods", "path_hint"]

_TORCHSERVE = ("predictions", "explanations", "invocations", "ping")


def add_routes(
    app: "falcon.App[Any, Any]",
    engine: "Engine",
    settings: ServerSettings,
    budget: MemoryBudget,
    *,
    access: Access,
    read_document: Any,
    error_handlers: Mapping[type[Exception], Callable[..., None]],
) -> None:
    """Add the routes that the settings ask for.

    Args:
        app: The app.
        engine: The models.
        settings: The server's settings.
        budget: The memory of requests.
        access: The tokens.
        read_document: Reads the JSON document of a request's body.
        error_handlers: The error handlers of the app's paths.
    """
    if settings.torchserve_api:
        torchserve = TorchServeRoutes(
            engine, settings, budget, access=access, read_document=read_document
        )
        torchserve.add_routes(app)
        torchserve.add_error_handlers(app, error_handlers)


def grpc_methods(settings: ServerSettings) -> "Callable[[Services, Engine], Mapping[str, Method]]":
    """Return what gives the methods of the gRPC services that the settings ask for."""
    if settings.torchserve_api:
        return torchserve_methods
    return lambda services, engine: {}


def path_hint(first_segment: str, served: Mapping[str, Any]) -> str:
    """Return what a sentence about a path without a route says of another server's routes.

    Args:
        first_segment: The path's first segment.
        served: The routes that are served, by their templates.
    """
    if first_segment in _TORCHSERVE and "/ping" not in served:
        return "; TorchServe's routes are served with --torchserve-api"
    return ""
