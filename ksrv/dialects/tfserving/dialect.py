"""The dialect of TensorFlow Serving: REST routes, PredictionService and ModelService, and model_config_list files."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ksrv.dialects.dialect import AppParts, Dialect
from ksrv.dialects.tfserving.model_list import ModelListReader
from ksrv.repository.format import Format

if TYPE_CHECKING:
    import falcon

    from ksrv.engine.engine import Engine
    from ksrv.server.grpc.services import Method, Services


class TensorFlowServing(Dialect):
    """See the module."""

    name = "tfserving"
    format = Format(lists=ModelListReader())

    def add_routes(self, app: "falcon.App[Any, Any]", parts: AppParts) -> None:
        """See `Dialect.add_routes`. `:predict` is KServe v1's, which reads both forms."""
        from ksrv.dialects.tfserving.rest import add_routes

        add_routes(app, parts)

    def grpc_methods(self, services: "Services", engine: "Engine") -> "Mapping[str, Method]":
        """See `Dialect.grpc_methods`."""
        from ksrv.dialects.tfserving.grpc_calls import tfserving_methods

        return tfserving_methods(services, engine)


DIALECT = TensorFlowServing()
