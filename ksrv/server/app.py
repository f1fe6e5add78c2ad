"""The Falcon app: every REST route, what its callers must show, and errors as JSON.

The app is complete under any WSGI server. Errors are `KsrvError`s; what Falcon itself finds (no such
route, a method that a route does not have) is rendered in the same form.
"""

from typing import TYPE_CHECKING, Any

import falcon

from ksrv._native.memory.memory_budget import MemoryBudget
from ksrv.errors import KsrvError, cut, quote
from ksrv.observe.traffic import count_status
from ksrv.protocol.metadata import working_extensions
from ksrv.server import dialects
from ksrv.server.audit import AuditLog
from ksrv.server.changeable_settings import ChangeableSettings
from ksrv.server.credentials import Access
from ksrv.server.http.answers import report_http, send_error, send_json, status_line
from ksrv.server.http.body import Bound, Environ, expected_body, read_body
from ksrv.server.http.byte_budget import Reservation, process_budget
from ksrv.server.http.callers import TrustedProxies
from ksrv.server.http.json_body import DOCUMENT_BYTES, document_too_large, parse_document
from ksrv.server.http.received_body import MESSAGE
from ksrv.server.http.request_ids import RequestIds
from ksrv.server.memory_regions import SharedMemory, shared_memory_of
from ksrv.server.page.routes import add_page
from ksrv.server.rest.changeable_settings import LoggingResource, TraceResource
from ksrv.server.rest.cross_origin import CrossOrigin
from ksrv.server.rest.generate import GenerateResource
from ksrv.server.rest.health import LiveResource, ModelReadyResource, ReadyResource
from ksrv.server.rest.infer import InferResource
from ksrv.server.rest.metadata import (
    ConfigResource,
    ModelListResource,
    ModelResource,
    OpenApiResource,
    ServerResource,
    StatisticsResource,
)
from ksrv.server.rest.metrics import MetricsResource
from ksrv.server.rest.repository import (
    IndexResource,
    LoadResource,
    UnloadResource,
)
from ksrv.server.rest.route_guard import ROUTE, Guard, GuardedRouter, Needs
from ksrv.server.rest.shared_memory import add_routes
from ksrv.server.settings import ServerSettings
from ksrv.server.shared.statistics import ServerStatistics

if TYPE_CHECKING:
    from ksrv.engine.engine import Engine
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
    """The Falcon app, which also tells what it wants of a message before the message's body has come.

    Args:
        router: Finds resources, for callers who may use them.
        guard: The checks of a request's form.
        read_document: Reads the JSON object of a management call.
        keywords: Falcon's own.
    """

    def __init__(
        self,
        router: GuardedRouter,
        guard: Guard,
        read_document: "DocumentReader",
        **keywords: Any,
    ) -> None:
        super().__init__(router=router, **keywords)
        self._finds = router
        self._guard = guard
        self._read_document = read_document

    def wanted_body(self, environ: Environ) -> int | None:
        """Return the most bytes of a body that the app reads; None if it answers without the body.

        No resource runs for this: a resource that reads long bodies has its method `wanted_body`.

        Args:
            environ: The WSGI environment; the input is not read.
        """
        try:
            self._guard.check(environ)
            req = falcon.Request(environ, options=self.req_options)
            found = self._finds.find(req.path, req)
            if found is None:
                return None
            resource, responders, params, _ = found
            if getattr(responders.get(req.method), "__self__", None) is not resource:
                return None  # the method is not the resource's
            wanted = getattr(resource, "wanted_body", None)
            if wanted is not None:
                most = int(wanted(req, **params))
            elif req.method == "POST":
                most = self._read_document.wanted(req)
            else:
                return None
            environ[ROUTE] = found  # the guard and the router run once
            return most
        except (KsrvError, falcon.HTTPError):
            return None  # which the app tells, when it is called with the head alone


class DocumentReader:
    """Reads the JSON object of a management call.

    Args:
        settings: The limits.
        budget: The bytes in flight.
    """

    def __init__(self, settings: ServerSettings, budget: MemoryBudget) -> None:
        self._limits = settings.limits
        self._decompress = settings.decompress_requests
        self._budget = budget
        self._bound = Bound(DOCUMENT_BYTES, document_too_large)

    def wanted(self, req: falcon.Request) -> int:
        """Return how long a body may be.

        Raises:
            KsrvError: The head announces one that is not read.
        """
        with Reservation(self._budget) as reservation:
            return expected_body(
                req.env, self._limits, reservation, bound=self._bound, decompress=self._decompress
            ).most

    def __call__(self, req: falcon.Request) -> Any:
        """Return the object.

        Raises:
            KsrvError: The body is no JSON object, or too long.
        """
        with Reservation(self._budget) as reservation:
            body = read_body(
                req.env,
                self._limits,
                reservation,
                bound=self._bound,
                decompress=self._decompress,
            )
            return parse_document(body, self._limits)


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
        error.__traceback__ = None  # whose frames hold the request, which holds the error
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


def make_app(
    engine: "Engine",
    settings: ServerSettings,
    *,
    access: Access | None = None,
    budget: MemoryBudget | None = None,
    shared_memory: SharedMemory | None = None,
    statistics: ServerStatistics | None = None,
    changeable: ChangeableSettings | None = None,
) -> App:
    """Return the WSGI app for an engine.

    Args:
        settings: Limits, access and the form of answers.
        access: The checks to share with another front end; made from the settings if left out.
        budget: The bytes in flight to share with another front end.
        shared_memory: The clients' regions to share with another front end.
        statistics: The statistics of all workers; the engine's if left out.
        changeable: The settings that calls may change, in every worker; in this process alone if left out.
    """
    statistics = statistics or ServerStatistics(engine)
    access = access or Access(settings)
    shared_memory = shared_memory or shared_memory_of(settings)
    budget = budget or process_budget(settings.limits)
    guard = Guard(access, settings.limits.head)
    middleware: list[Any] = [
        RequestIds(),
        AuditLog(TrustedProxies.of(settings)),
        ErrorCounts(),
        guard,
    ]
    if settings.allowed_origins:
        middleware.append(CrossOrigin(settings.allowed_origins))
    read_document = DocumentReader(settings, budget)
    app = App(
        GuardedRouter(access, dialects.path_hint), guard, read_document, middleware=middleware
    )
    app.req_options.strip_url_path_trailing_slash = True
    app.req_options.auto_parse_qs_csv = False
    answers = ErrorAnswers()
    app.add_error_handler(Exception, answers.on_error)
    app.add_error_handler(falcon.HTTPError, answers.on_falcon_error)

    model = "/v2/models/{name}"
    version = model + "/versions/{version}"
    infer = InferResource(
        engine,
        settings,
        budget,
        access,
        shared_memory=shared_memory,
    )
    generate = GenerateResource(engine, settings, budget, access)
    stats = StatisticsResource(statistics)
    app.add_route("/v2/health/live", LiveResource(), needs=Needs.NOTHING)
    app.add_route(
        "/v2/health/ready", ReadyResource(engine, names=not access.needs_token), needs=Needs.NOTHING
    )
    app.add_route(
        "/v2",
        ServerResource(working_extensions(shared_memory=settings.allow_shared_memory)),
        needs=Needs.TOKEN,
    )
    app.add_route("/v2/models", ModelListResource(engine), needs=Needs.TOKEN)
    app.add_route("/v2/models/stats", stats, needs=Needs.TOKEN)
    for prefix in (model, version):
        app.add_route(prefix, ModelResource(engine, settings.limits), needs=Needs.TOKEN)
        app.add_route(prefix + "/ready", ModelReadyResource(engine), needs=Needs.TOKEN)
        app.add_route(prefix + "/config", ConfigResource(engine), needs=Needs.TOKEN)
        app.add_route(prefix + "/stats", stats, needs=Needs.TOKEN)
        app.add_route(prefix + "/infer", infer, needs=Needs.TOKEN)
        app.add_route(prefix + "/explain", infer, suffix="explain", needs=Needs.TOKEN)
        app.add_route(prefix + "/generate", generate, needs=Needs.TOKEN)
        app.add_route(prefix + "/generate_stream", generate, suffix="stream", needs=Needs.TOKEN)
    openapi = OpenApiResource(engine, needs_token=access.needs_token, metrics=settings.metrics)
    app.add_route("/openapi.json", openapi, needs=Needs.TOKEN)
    if settings.metrics:
        app.add_route(
            "/metrics", MetricsResource(statistics, settings.metrics_compat), needs=Needs.TOKEN
        )
    add_page(app, shown=settings.ui, docs=settings.docs)
    changeable = changeable or ChangeableSettings()
    logging_resource = LoggingResource(changeable, read_document)
    app.add_route("/v2/logging", logging_resource, needs=Needs.CONTROL)
    trace = TraceResource(changeable, engine, read_document)
    app.add_route("/v2/trace/setting", trace, needs=Needs.CONTROL)
    app.add_route("/v2/models/{name}/trace/setting", trace, needs=Needs.CONTROL)
    index = IndexResource(engine, read_document)
    app.add_route("/v2/repository/index", index, needs=Needs.TOKEN)
    load, unload = LoadResource(engine, read_document), UnloadResource(engine, read_document)
    app.add_route("/v2/repository/models/{name}/load", load, needs=Needs.CONTROL)
    app.add_route("/v2/repository/models/{name}/unload", unload, needs=Needs.CONTROL)
    if shared_memory is not None:
        add_routes(app, shared_memory, read_document, access)
    answers.forms += dialects.add_routes(
        app,
        engine=engine,
        settings=settings,
        budget=budget,
        access=access,
        read_document=read_document,
    )
    return app
