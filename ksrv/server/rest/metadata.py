"""The routes that describe: the server, its models, their configuration and statistics."""

from contextlib import suppress
from typing import TYPE_CHECKING

import falcon

from ksrv.errors import NotFound, NotReady
from ksrv.limits import Limits
from ksrv.protocol import metadata
from ksrv.protocol.openapi import openapi
from ksrv.server.rest.responses import send_json

if TYPE_CHECKING:
    from ksrv.engine.engine import Engine
    from ksrv.server.workers.shared_statistics import ServerStatistics


class ServerResource:
    """GET /v2."""

    def __init__(self, extensions: tuple[str, ...]) -> None:
        self._extensions = extensions

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Answer the server's name, version and extensions."""
        send_json(resp, metadata.server_metadata(self._extensions))


class _EngineResource:
    def __init__(self, engine: "Engine") -> None:
        self._engine = engine


class ModelListResource(_EngineResource):
    """GET /v2/models."""

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Answer the names of all models of the repository."""
        send_json(resp, {"models": sorted({state.name for state in self._engine.index()})})


class ModelResource:
    """GET /v2/models/{name}[/versions/{version}]."""

    def __init__(self, engine: "Engine", limits: Limits) -> None:
        self._engine = engine
        self._limits = limits

    def on_get(
        self, req: falcon.Request, resp: falcon.Response, name: str, version: str = ""
    ) -> None:
        """Answer a model's inputs and outputs."""
        spec = self._engine.spec(name, version)
        send_json(resp, metadata.model_metadata(spec, self._engine.versions(name), self._limits))


class ConfigResource(_EngineResource):
    """GET /v2/models/{name}[/versions/{version}]/config."""

    def on_get(
        self, req: falcon.Request, resp: falcon.Response, name: str, version: str = ""
    ) -> None:
        """Answer a model's configuration in Triton's form."""
        send_json(resp, metadata.model_config(self._engine.spec(name, version)))


class OpenApiResource(_EngineResource):
    """GET /openapi.json.

    Args:
        engine: The models.
        needs_token: Whether callers need a token.
        metrics: Whether the metrics page is served.
    """

    def __init__(self, engine: "Engine", *, needs_token: bool, metrics: bool) -> None:
        super().__init__(engine)
        self._needs_token = needs_token
        self._metrics = metrics

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Answer a description of the routes, with the inputs and outputs of the models that serve."""
        specs = []
        for name in sorted({model.spec.name for model in self._engine.loaded()}):
            with suppress(NotFound, NotReady):  # it goes while it is being described
                specs.append(self._engine.spec(name))
        send_json(resp, openapi(specs, needs_token=self._needs_token, metrics=self._metrics))


class StatisticsResource:
    """GET /v2/models/stats and /v2/models/{name}[/versions/{version}]/stats."""

    def __init__(self, statistics: "ServerStatistics") -> None:
        self._statistics = statistics

    def on_get(
        self, req: falcon.Request, resp: falcon.Response, name: str = "", version: str = ""
    ) -> None:
        """Answer what the models have done since they were loaded."""
        send_json(resp, metadata.model_statistics(self._statistics.models(name, version)))
