"""The Falcon app: every REST route, what its callers must show, and errors as JSON.

The app is complete under any WSGI server. Errors are `KsrvError`s; what Falcon itself finds (no such
route, a method that a route does not have) is rendered in the same form.
"""

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import falcon

from ksrv.errors import KsrvError, NotFound, NotReady, cut, quote
from ksrv.observe.metric_aliases import MetricAliases
from ksrv.observe.metrics import CONTENT_TYPE, metrics_page
from ksrv.observe.traffic import count_status
from ksrv.protocol import metadata, openapi
from ksrv.protocol.documents import (
    IndexRequest,
    LoadRequest,
    LogSettings,
    ModelMetadata,
    Models,
    TraceSettings,
    read_document,
)
from ksrv.protocol.openapi import Operation
from ksrv.server import dialects
from ksrv.server.audit import AuditLog
from ksrv.server.http.answers import report_http, send_error, send_json, status_line
from ksrv.server.http.body import Environ
from ksrv.server.http.callers import TrustedProxies
from ksrv.server.http.received_body import MESSAGE
from ksrv.server.http.request_ids import RequestIds
from ksrv.server.page.routes import add_page
from ksrv.server.rest.cross_origin import CrossOrigin
from ksrv.server.rest.generate import GenerateResource
from ksrv.server.rest.health import HealthResource, model_health, server_health
from ksrv.server.rest.infer import InferResource
from ksrv.server.rest.json_resource import DocumentReader, JsonResource
from ksrv.server.rest.route_guard import ROUTE, Guard, GuardedRouter, Needs
from ksrv.server.rest.shared_memory import add_routes
from ksrv.server.shared import repository
from ksrv.server.shared.parts import ServerParts
from ksrv.server.shared.statistics import ServerStatistics

MODEL = "/v2/models/{name}"

if TYPE_CHECKING:
    from ksrv.server.dialects import ErrorForm


class ErrorCounts:
    """Falcon middleware: counts the answers that tell of an error, of whatever route."""

    def process_response(
        self, req: falcon.Request, resp: falcon.Response, resource: object, req_succeeded: bool
    ) -> None:
        """Count the answer, unless the native HTTP server counts it."""
        if resp.status_code >= 400 and MESSAGE not in req.env:
            count_status("http", resp.status_code)


class App(falcon.App[Any, Any]):
    """The Falcon app. Before a body is received, the native server asks it whether it will read the body.

    Args:
        router: Finds the resource of a path, and checks whether the caller may use it.
        guard: The checks of a request's form.
        read_document: Reads the JSON object of a management call.
        keywords: Further arguments of `falcon.App`.

    Attributes:
        read_document: As given.
        described_routes: Returns the routes of the OpenAPI document.
    """

    def __init__(
        self,
        router: GuardedRouter,
        guard: Guard,
        read_document: DocumentReader,
        **keywords: Any,
    ) -> None:
        super().__init__(router=router, **keywords)
        self._finds = router
        self.described_routes = router.described_routes
        self._guard = guard
        self.read_document = read_document

    def wanted_body(self, environ: Environ) -> int | None:
        """Return the most bytes of a body that the app reads; None if it answers without the body.

        The request is not answered here. A resource that reads long bodies has a method `wanted_body`.

        Args:
            environ: The WSGI environment; `wsgi.input` is not read.
        """
        try:
            self._guard.check(environ)
            req = falcon.Request(environ, options=self.req_options)
            found = self._finds.find(req.path, req)
            if found is None:
                return None
            resource, responders, params, _ = found
            if getattr(responders.get(req.method), "__self__", None) is not resource:
                return None  # Falcon's responder for OPTIONS or 405, which reads no body
            wanted = getattr(resource, "wanted_body", None)
            if wanted is not None:
                most = int(wanted(req, **params))
            elif req.method == "POST":
                most = self.read_document.wanted(req)
            else:
                return None
            environ[ROUTE] = found  # so that the guard and the router do not run again
            return most
        except (KsrvError, falcon.HTTPError):
            return None  # the app is then called without the body, and answers this error


class MetricsResource:
    """GET /metrics: the statistics of all workers, in Prometheus' text format.

    Args:
        names: The servers under whose metric names the models' metrics are shown too.
    """

    def __init__(self, statistics: ServerStatistics, names: tuple[MetricAliases, ...]) -> None:
        self._statistics = statistics
        self._names = names

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Answer with the current metrics."""
        resp.content_type = CONTENT_TYPE
        resp.data = metrics_page(self._statistics.page_values(), self._names)


class ErrorAnswers:
    """Answers failures in the form of their route.

    Attributes:
        forms: The forms of dialects. The first that answers a failure wins.
    """

    def __init__(self) -> None:
        self.forms: list[ErrorForm] = []

    def on_error(
        self, req: falcon.Request, resp: falcon.Response, error: Exception, params: dict[str, Any]
    ) -> None:
        """Answer an exception of a resource."""
        failure = report_http(error, req.env)
        error.__traceback__ = (
            None  # its frames refer to the request, which refers to the error: a cycle
        )
        if not any(form(req, resp, failure, failure is not error) for form in self.forms):
            send_error(resp, failure)

    def on_falcon_error(
        self,
        req: falcon.Request,
        resp: falcon.Response,
        error: falcon.HTTPError,
        params: dict[str, Any],
    ) -> None:
        """Answer a failure that Falcon found, such as a method that a route does not have."""
        if any(form(req, resp, error, False) for form in self.forms):
            return
        status = error.status_code
        text = f"{status_line(status)}: {error.description or error.title}"
        if status == 405:
            allowed = dict(error.headers or {}).get("Allow", "")
            text = f"{quote(req.path)} does not take {quote(req.method)}; it takes {allowed}"
        send_json(resp, {"error": cut(text)}, status)
        resp.set_headers(error.headers or {})


def make_app(parts: ServerParts) -> App:
    """Return the WSGI app for an engine."""
    settings = parts.settings
    guard = Guard(parts.access, settings.limits.head)
    middleware: list[Any] = [
        RequestIds(),
        AuditLog(TrustedProxies.of(settings)),
        ErrorCounts(),
        guard,
    ]
    if settings.allowed_origins:
        middleware.append(CrossOrigin(settings.allowed_origins))
    app = App(
        GuardedRouter(parts.access, dialects.path_hint),
        guard,
        DocumentReader(settings, parts.budget),
        middleware=middleware,
    )
    app.req_options.strip_url_path_trailing_slash = True
    app.req_options.auto_parse_qs_csv = False
    answers = ErrorAnswers()
    app.add_error_handler(Exception, answers.on_error)
    app.add_error_handler(falcon.HTTPError, answers.on_falcon_error)
    _add_routes(app, parts)
    _add_control_routes(app, parts)
    answers.forms += dialects.add_routes(
        app,
        engine=parts.engine,
        settings=settings,
        budget=parts.budget,
        access=parts.access,
        read_document=app.read_document,
    )
    return app


def _add_routes(app: App, parts: ServerParts) -> None:
    """Add the routes of KServe v2 and Triton's extensions, with their descriptions for the OpenAPI document."""
    engine, settings, access, statistics = (
        parts.engine,
        parts.settings,
        parts.access,
        parts.statistics,
    )
    extensions = metadata.working_extensions(shared_memory=settings.allow_shared_memory)

    def add(
        path: str, resource: object, needs: Needs = Needs.TOKEN, **described: Operation
    ) -> None:
        app.add_route(path, resource, needs=needs, described=described)

    def add_model(
        path: str, resource: object, suffix: str | None = None, **described: Operation
    ) -> None:
        for prefix, shown in (MODEL, described), (MODEL + "/versions/{version}", {}):
            app.add_route(
                prefix + path, resource, needs=Needs.TOKEN, suffix=suffix, described=shown
            )

    def server_ready() -> dict[str, object]:
        return server_health(engine.why_not_ready(names=not access.needs_token))

    def models() -> Any:
        return {"models": sorted({state.name for state in engine.index()})}

    def model(name: str, version: str = "") -> Any:
        spec = engine.describe(name, version)
        return metadata.model_metadata(spec, engine.versions(name), settings.limits)

    def config(name: str, version: str = "") -> Any:
        return metadata.model_config_document(engine.describe(name, version))

    def stats(name: str = "", version: str = "") -> Any:
        return metadata.model_statistics(statistics.models(name, version))

    def open_api() -> Any:
        specs = []
        for name in sorted({model.spec.name for model in engine.loaded()}):
            with suppress(NotFound, NotReady):  # it may be unloaded meanwhile
                specs.append(engine.spec(name))
        return openapi.openapi(app.described_routes(), specs, needs_token=access.needs_token)

    live, ready = JsonResource(lambda: {"live": True}), HealthResource(server_ready)
    add("/v2/health/live", live, Needs.NOTHING, get=Operation("Whether the server lives", "health"))
    add("/v2/health/ready", ready, Needs.NOTHING, get=Operation("Whether it is ready", "health"))
    server = JsonResource(lambda: metadata.server_metadata(extensions))
    add("/v2", server, get=Operation("The server and its extensions", "server"))
    add("/v2/models", JsonResource(models), get=Operation("The models", "server", Models))
    statistics_resource = JsonResource(stats)
    add("/v2/models/stats", statistics_resource, get=Operation("All statistics", "server"))
    add_model("", JsonResource(model), get=Operation("Inputs and outputs", answer=ModelMetadata))
    health = HealthResource(partial(model_health, engine))
    add_model("/ready", health, get=Operation("Whether the model serves"))
    add_model("/config", JsonResource(config), get=Operation("Configuration"))
    add_model("/stats", statistics_resource, get=Operation("The model's statistics"))
    common = engine, settings, parts.budget, access
    infer = InferResource(*common, shared_memory=parts.shared_memory)
    add_model("/infer", infer, post=openapi.INFER)
    add_model("/explain", infer, "explain")
    generate = GenerateResource(*common)
    add_model("/generate", generate, post=openapi.GENERATE)
    add_model("/generate_stream", generate, "stream", post=openapi.GENERATE_STREAM)
    add("/openapi.json", JsonResource(open_api))
    if settings.metrics:
        add("/metrics", MetricsResource(statistics, settings.metrics_compat), get=openapi.METRICS)
    add_page(app, shown=settings.ui, docs=settings.docs)
    if parts.shared_memory is not None:
        add_routes(app, parts.shared_memory, app.read_document, access)


def _add_control_routes(app: App, parts: ServerParts) -> None:
    """Add the routes that show and change the repository and the settings."""
    engine, changeable, reader = parts.engine, parts.changeable, app.read_document

    def trace(document: Mapping[str, Any] | None = None, name: str = "") -> Any:
        if name:
            engine.spec(name, "")
        return changeable.trace(name, document)

    def index(document: Any) -> Any:
        ready_only = read_document(document, IndexRequest).ready
        return repository.index(engine, ready_only=ready_only)

    def load(document: Any, name: str) -> Any:
        repository.load(engine, name, read_document(document, LoadRequest).parameters or {})
        return {"name": name, "load": True}

    def unload(document: Any, name: str) -> Any:
        repository.unload(engine, name, read_document(document, LoadRequest).parameters or {})
        return {"name": name, "unload": True}

    log = JsonResource(changeable.log, changeable.log, reader)
    described = {
        "get": Operation("The log settings", "server", LogSettings),
        "post": Operation("Change the log settings", "server", LogSettings, LogSettings),
    }
    app.add_route("/v2/logging", log, needs=Needs.CONTROL, described=described)
    for path, tag in ("/v2/trace/setting", "server"), (MODEL + "/trace/setting", ""):
        described = {
            "get": Operation("The trace settings", tag, TraceSettings),
            "post": Operation("Change the trace settings", tag, TraceSettings, TraceSettings),
        }
        resource = JsonResource(partial(trace, None), trace, reader)
        app.add_route(path, resource, needs=Needs.CONTROL, described=described)
    for path, post, needs, operation in (
        ("index", index, Needs.TOKEN, openapi.INDEX),
        ("models/{name}/load", load, Needs.CONTROL, openapi.LOAD),
        ("models/{name}/unload", unload, Needs.CONTROL, openapi.UNLOAD),
    ):
        resource = JsonResource(None, post, reader)
        app.add_route(
            f"/v2/repository/{path}", resource, needs=needs, described={"post": operation}
        )
