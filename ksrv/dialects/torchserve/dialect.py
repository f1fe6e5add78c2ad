"""TorchServe: archives, handlers that import `ts`, config.properties, and the routes and gRPC services."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ksrv.dialects.dialect import AppParts, Dialect, ForeignSettings, ImportedModel
from ksrv.dialects.torchserve.archive.format import FORMAT

if TYPE_CHECKING:
    import falcon

    from ksrv.engine.engine import Engine
    from ksrv.server.grpc.services import Method, Services

ROUTES = ("predictions", "explanations", "invocations", "ping")
"""The first segments of the paths of TorchServe's routes."""


class TorchServe(Dialect):
    """See the module. The routes and gRPC services are served with `torchserve_api`."""

    name = "torchserve"
    format = FORMAT
    settings_key = "torchserve_config"

    def add_routes(self, app: "falcon.App[Any, Any]", parts: AppParts) -> None:
        """See `Dialect.add_routes`; predict and explain of archives are answered in every server."""
        from ksrv.dialects.kserve_v1.dialect import add_predict
        from ksrv.dialects.torchserve.routes.kserve_v1 import PredictResource
        from ksrv.dialects.torchserve.routes.rest import add_routes

        add_predict(app, PredictResource(parts))
        if parts.settings.torchserve_api:
            add_routes(app, parts)

    def path_hint(self, first_segment: str, served: Mapping[str, Any]) -> str:
        """See `Dialect.path_hint`."""
        if first_segment in ROUTES and "/ping" not in served:
            return "; TorchServe's routes are served with --torchserve-api"
        return ""

    def grpc_methods(self, services: "Services", engine: "Engine") -> "Mapping[str, Method]":
        """See `Dialect.grpc_methods`."""
        if not services.settings.torchserve_api:
            return {}
        from ksrv.dialects.torchserve.routes.grpc_calls import torchserve_methods

        return torchserve_methods(services, engine)

    def read_settings(self, path: Path) -> ForeignSettings:
        """See `Dialect.read_settings`."""
        from ksrv.dialects.torchserve.settings.config_properties import translate

        return translate(path)

    def examine(self, path: Path) -> ImportedModel:
        """See `Dialect.examine`."""
        from ksrv.dialects.torchserve.archive.importing import examine

        return examine(path)


DIALECT = TorchServe()
