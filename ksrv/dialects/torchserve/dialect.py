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
    """The dialect. Its routes and gRPC services are served if the setting `torchserve_api` is on."""

    name = "torchserve"
    format = FORMAT
    settings_key = "torchserve_config"

    def add_routes(self, app: "falcon.App[Any, Any]", parts: AppParts) -> None:
        """See `Dialect.add_routes`. KServe v1's predict and explain serve archives even without `torchserve_api`."""
        from ksrv.dialects.kserve_v1.dialect import add_predict
        from ksrv.dialects.torchserve.routes.kserve_v1 import PredictResource, takes_instances
        from ksrv.dialects.torchserve.routes.rest import add_routes

        add_predict(app, parts, PredictResource(parts), takes_instances)
        if parts.settings.torchserve_api:
            add_routes(app, parts)

    def path_hint(self, first_segment: str, served: Mapping[str, Any]) -> str:
        """See `Dialect.path_hint`."""
        if first_segment in ROUTES and "/predictions/{name}" not in served:
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

    def examine(self, path: Path) -> ImportedModel | None:
        """See `Dialect.examine`."""
        from ksrv.dialects.torchserve.archive.importing import examine

        return examine(path)


DIALECT = TorchServe()
