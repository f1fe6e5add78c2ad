"""The routes that describe: the server, its models, their configuration and statistics.

A model's metadata and readiness are rendered when it comes or changes as well, for the HTTP server's I/O
threads, which send them without Python. They send none of them from the moment in which the models
change until they are rendered anew.
"""

import logging
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING

import falcon

from ksrv._native.server.server import PreparedAnswer
from ksrv.errors import KsrvError, NotFound, NotReady
from ksrv.limits import Limits
from ksrv.protocol import metadata
from ksrv.protocol.openapi import openapi
from ksrv.server.http.answers import send_json
from ksrv.server.rest.fast_path import render_json
from ksrv.server.rest.health import model_ready

if TYPE_CHECKING:
    from ksrv.engine.engine import Engine
    from ksrv.engine.model import ModelVersion
    from ksrv.server.shared.statistics import ServerStatistics

log = logging.getLogger(__name__)


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
        spec = self._engine.describe(name, version)
        send_json(resp, metadata.model_metadata(spec, self._engine.versions(name), self._limits))


class ConfigResource(_EngineResource):
    """GET /v2/models/{name}[/versions/{version}]/config."""

    def on_get(
        self, req: falcon.Request, resp: falcon.Response, name: str, version: str = ""
    ) -> None:
        """Answer a model's configuration in Triton's form."""
        send_json(resp, metadata.model_config_document(self._engine.describe(name, version)))


class OpenApiResource(_EngineResource):
    """GET /openapi.json.

    Args:
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


def is_ready(engine: "Engine", name: str, version: str) -> bool:
    """Tell whether a model serves without any problem; the name and version may be gone by now.

    Args:
        engine: The engine to ask.
        version: The version's, or "" for the highest.
    """
    try:
        return not (engine.why_model_not_ready(name, version) or engine.why_degraded(name, version))
    except KsrvError:
        return False


def describe(
    engine: "Engine", name: str, model: "ModelVersion", limits: Limits, *, ready: bool
) -> tuple[PreparedAnswer | None, PreparedAnswer | None]:
    """Return the answers with a model's metadata and its readiness.

    Args:
        engine: The engine, for its versions.
        ready: Whether it serves with all of its instances; why it does not is left to the Falcon app.
    """
    try:
        document = metadata.model_metadata(model.spec, engine.versions(name), limits)
        described = render_json(document, HTTPStatus.OK)
        return described, render_json(model_ready(name), HTTPStatus.OK) if ready else None
    except KsrvError:  # gone since the look at the table
        return None, None
    except Exception:
        log.exception("the metadata of the model %s cannot be rendered", ascii(name))
        return None, None
