"""The Falcon app: every REST route, the credentials that its callers need, and errors as JSON.

`make_app` builds the app. The native server passes it requests that it does not answer itself (`rest/app_messages.py`),
but the app works under any WSGI server. Resources raise `KsrvError`s. Errors of Falcon itself, such as an unknown route
or a method that a route lacks, are rendered in the same form.
"""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import falcon

from ksrv.dialects import registry
from ksrv.errors import KsrvError, NotFound, NotReady, cut, quote
from ksrv.observe.metrics import CONTENT_TYPE
from ksrv.observe.traffic import count_status
from ksrv.protocol import metadata, openapi
from ksrv.protocol.documents import ModelMetadata, Models
from ksrv.protocol.openapi import Operation
from ksrv.server.audit import AuditLog
from ksrv.server.http.answers import report_http, send_error, send_json, status_line
from ksrv.server.http.body import Environ
from ksrv.server.http.callers import TrustedProxies
from ksrv.server.http.received_body import MESSAGE
from ksrv.server.http.request_ids import RequestIds
from ksrv.server.page.routes import add_page
from ksrv.server.rest.cross_origin import CrossOrigin
from ksrv.server.rest.health import HealthResource, model_health, server_health
from ksrv.server.rest.infer import InferResource
from ksrv.server.rest.json_resource import DocumentReader, JsonResource
from ksrv.server.rest.route_guard import ROUTE, Guard, GuardedRouter, Needs, add_model_route
from ksrv.server.shared.parts import ServerParts
from ksrv.server.shared.statistics import ServerStatistics

if TYPE_CHECKING:
    from ksrv.dialects.dialect import ErrorForm


class ErrorCounts:
    """Falcon middleware: counts the error answers of all routes."""

    def process_response(
        self, req: falcon.Request, resp: falcon.Response, resource: object, req_succeeded: bool
    ) -> None:
        """Count the answer, unless the native HTTP server counts it."""
        if resp.status_code >= 400 and MESSAGE not in req.env:
            count_status("http", resp.status_code)


class App(falcon.App[Any, Any]):
    """The Falcon app. Before the native server receives a body, it asks the app whether the app will read it.

    Args:
        router: Finds the resource of a path, and checks whether the caller may use it.
        guard: Checks the request before it is routed.
        read_document: Reads the JSON object in the body of a management call.
        keywords: Further arguments of `falcon.App`.

    Attributes:
        read_document: As given.
        described_routes: Returns the routes of the OpenAPI document.
    """

    def __init__(
        self, router: GuardedRouter, guard: Guard, read_document: DocumentReader, **keywords: Any
    ) -> None:
        super().__init__(router=router, **keywords)
        self._guarded_router = router
        self.described_routes = router.described_routes
        self._guard = guard
        self.read_document = read_document

    def wanted_body(self, environ: Environ) -> int | None:
        """Return the most bytes of a body that the app reads; None if it answers without reading the body.

        The request is not answered here. A resource that reads long bodies has a method `wanted_body`, too.

        Args:
            environ: The WSGI environment; `wsgi.input` is not read.
        """
        try:
            self._guard.check(environ)
            req = falcon.Request(environ, options=self.req_options)
            found = self._guarded_router.find(req.path, req)
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
        compat: The other servers whose metric names the page also shows.
    """

    def __init__(self, statistics: ServerStatistics, compat: Sequence[str]) -> None:
        self._statistics = statistics
        self._other_names = partial(registry.metric_lines, compat)

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Answer with the current metrics."""
        resp.content_type = CONTENT_TYPE
        resp.data = self._statistics.metrics_page(self._other_names)


class ErrorAnswers:
    """Answers exceptions as JSON, in the form of their route.

    Attributes:
        forms: Functions of dialects that answer failures of their routes. The first that returns True has answered.
    """

    def __init__(self) -> None:
        self.forms: list[ErrorForm] = []

    def on_error(
        self, req: falcon.Request, resp: falcon.Response, error: Exception, params: dict[str, Any]
    ) -> None:
        """Answer an exception of a resource."""
        failure = report_http(error, req.env)
        # The frames of the traceback refer to the request, which refers to the error: a cycle.
        error.__traceback__ = None
        # The last argument is True for an unexpected exception: `report_http` has replaced it by a `KsrvError`.
        if not any(form(req, resp, failure, failure is not error) for form in self.forms):
            send_error(resp, failure)

    def on_falcon_error(
        self,
        req: falcon.Request,
        resp: falcon.Response,
        error: falcon.HTTPError,
        params: dict[str, Any],
    ) -> None:
        """Answer an error of Falcon, such as a method that a route lacks."""
        if any(form(req, resp, error, False) for form in self.forms):
            return
        status = error.status_code
        text = f"{status_line(status)}: {error.description or error.title}"
        if status == 405:
            allowed = dict(error.headers or {}).get("Allow", "")
            text = f"{quote(req.path)} does not take {quote(req.method)}; it takes {allowed}"
            if req.method == "POST" and str(req.uri_template).endswith(("{name}", "{version}")):
                text += "; to infer, add /infer to the path"
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
        GuardedRouter(parts.access, registry.path_hint),
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
    answers.forms += registry.add_routes(app, parts, app.read_document)
    return app


def _add_routes(app: App, parts: ServerParts) -> None:
    """Add the routes of KServe v2, with their descriptions for the OpenAPI document."""
    engine, settings, access, statistics = (
        parts.engine,
        parts.settings,
        parts.access,
        parts.statistics,
    )

    def add(
        path: str, resource: object, needs: Needs = Needs.TOKEN, **described: Operation
    ) -> None:
        app.add_route(path, resource, needs=needs, described=described)

    def server_ready() -> dict[str, object]:
        return server_health(engine.why_not_ready(names=not access.needs_token))

    def models() -> Any:
        return {"models": sorted({state.name for state in engine.index()})}

    def model(name: str, version: str = "") -> Any:
        spec = engine.describe(name, version)
        return metadata.model_metadata(spec, engine.versions(name), settings.limits)

    def open_api() -> Any:
        specs = []
        for name in sorted({model.spec.name for model in engine.loaded()}):
            with suppress(NotFound, NotReady):  # it may be unloaded meanwhile
                specs.append(engine.spec(name))
        return openapi.openapi(app.described_routes(), specs, needs_token=access.needs_token)

    live, ready = JsonResource(lambda: {"live": True}), HealthResource(server_ready)
    add("/v2/health/live", live, Needs.NOTHING, get=Operation("Whether the server lives", "health"))
    add("/v2/health/ready", ready, Needs.NOTHING, get=Operation("Whether it is ready", "health"))
    server = JsonResource(lambda: metadata.server_metadata(parts.extensions))
    add("/v2", server, get=Operation("The server and its extensions", "server"))
    add("/v2/models", JsonResource(models), get=Operation("The models", "server", Models))
    add_model_route(
        app, "", JsonResource(model), get=Operation("Inputs and outputs", answer=ModelMetadata)
    )
    health = HealthResource(partial(model_health, engine))
    add_model_route(app, "/ready", health, get=Operation("Whether the model serves"))
    infer = InferResource(parts)
    add_model_route(app, "/infer", infer, post=openapi.INFER)
    add_model_route(app, "/explain", infer, "explain")
    add("/openapi.json", JsonResource(open_api))
    if settings.metrics:
        add("/metrics", MetricsResource(statistics, settings.metrics_compat), get=openapi.METRICS)
    add_page(app, shown=settings.ui, docs=settings.docs)
