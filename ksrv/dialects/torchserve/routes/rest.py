"""TorchServe's inference routes, over the same engine.

They are served for archives, on the main HTTP address, when the setting `torchserve_api` asks for
them. A request becomes one row whose parts are BYTES tensors; the route's facts are a
`ksrv.dialects.torchserve.calls.TorchServeCall`. gunicorn upper-cases the names of headers first, so handlers find
`X-My-Header` in whichever case the client wrote it.
"""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import falcon
from msgspec.structs import replace

from ksrv.dialects.dialect import AppParts
from ksrv.dialects.torchserve.calls import ROUTES, TorchServeCall
from ksrv.dialects.torchserve.routes import errors
from ksrv.dialects.torchserve.routes import responses as answers
from ksrv.dialects.torchserve.routes.archives import Archives
from ksrv.dialects.torchserve.routes.form_parts import Part, read_parts
from ksrv.dialects.torchserve.routes.management import ChangingResource, ManagementRoutes, query_of
from ksrv.errors import KsrvError
from ksrv.model.spec import ModelSpec
from ksrv.request import InferRequest, Tensor
from ksrv.server.call import Find
from ksrv.server.http.body import Bound
from ksrv.server.http.request_headers import request_headers
from ksrv.server.http.request_ids import REQUEST_ID
from ksrv.server.http.wsgi_calls import find_before_body
from ksrv.server.rest.inference_resource import InferenceResource
from ksrv.server.rest.route_guard import Needs

if TYPE_CHECKING:
    from ksrv.engine.engine import Engine

KSERVE_PATHS = ("/v2", "/v1", "/metrics")
"""Paths below these are not TorchServe's, whatever goes wrong on them."""


def send_error(
    req: falcon.Request,
    resp: falcon.Response,
    error: KsrvError | falcon.HTTPError,
    unexpected: bool,
) -> bool:
    """Answer a failure on these routes in TorchServe's form; see `ksrv.dialects.dialect.ErrorForm`."""
    if unexpected or req.path.startswith(KSERVE_PATHS):
        return False
    answers.prepare(resp)
    if isinstance(error, KsrvError):
        answers.send_error(resp, errors.translated(error))
    else:
        resp.set_headers(error.headers or {})  # the methods of a 405
        answers.send_error(resp, errors.for_status(error.status_code))
    return True


def add_routes(app: "falcon.App[Any, Any]", parts: AppParts) -> None:
    """Add the routes to an app, and the form of their errors."""
    archives = Archives(parts.engine)
    management = ManagementRoutes(archives, parts.access, parts.read_document)
    prediction, explanation = (
        PredictionResource(parts, archives),
        ExplanationResource(parts, archives),
    )
    older, described = OlderResource(parts, archives), DescribeResource(management)
    for path, resource in (
        ("/predictions/{name}", prediction),
        ("/predictions/{name}/{version}", prediction),
        ("/predictions/{name}/{version}/{url_path:path}", prediction),
        ("/explanations/{name}", explanation),
        ("/explanations/{name}/{version}", explanation),
        ("/explanations/{name}/{version}/{url_path:path}", explanation),
        ("/invocations", older),
        ("/models/{name}/invoke", older),
        ("/{name}/predict", older),
        ("/{name}/{version}/predict", older),
        ("/models/{name}", described),
        ("/models/{name}/{version}", described),
    ):
        app.add_route(path, resource, needs=Needs.TOKEN)
    management.add_routes(app)
    app.add_route("/ping", PingResource(parts.engine), needs=Needs.NOTHING)
    parts.error_forms.append(send_error)


class _RequestResource(InferenceResource):
    """The base of the routes for inference.

    Args:
        parts: See `AppParts`.
    """

    def __init__(self, parts: AppParts, archives: Archives) -> None:
        super().__init__(parts)
        self._archives = archives

    def _bound(self, req: falcon.Request, spec: ModelSpec | None) -> Bound | None:
        """See `InferenceResource`: the handler reads the body, whose limit is that of all bodies."""
        return None

    def wanted_body(
        self, req: falcon.Request, name: str = "", version: str = "", url_path: str = ""
    ) -> int:
        """See `InferenceResource.wanted_body`."""
        if name:
            find = partial(find_before_body, self._engine, req.env)
            self._archives.find(name, version, find)
        return super().wanted_body(req)

    def _answer(
        self,
        req: falcon.Request,
        resp: falcon.Response,
        name: str,
        version: str,
        *,
        call: TorchServeCall,
        explain: bool = False,
        query: Sequence[tuple[str, str]] = (),
    ) -> None:
        """Answer one request.

        Args:
            name: The model's name, "" where a part of the request names it.
            version: The version, or "".
            call: The facts of the route; the content types of the parts are filled in here.
            explain: Whether to explain.
            query: Query parameters that are parts of the row.
        """

        def read(find: Find) -> InferRequest:
            # An unknown model is refused before the body is read.
            target = self._archives.find(name, version, find) if name else None
            with self._bodies.reserve() as reservation:  # afterwards the queue counts the bytes
                body = self._body(req, reservation)
                parts = read_parts(body, req.content_type, query)
            named = name or _named_by(parts)
            content_types = {part.name: part.content_type for part in parts}
            return InferRequest(
                named,
                version,
                req.env[REQUEST_ID],
                [Tensor(part.name, "BYTES", (1,), [part.value]) for part in parts],
                headers=request_headers(
                    req.env, with_credentials=not self._access.hides_tokens, spelling=str.title
                ),
                explain=explain,
                nbytes=len(body),
                dialect=ROUTES,
                facts=replace(call, content_types=content_types).facts(),
                client=self._access.client_of(req.get_header("Authorization")),
                target=target or self._archives.find(named, version, find),
            )

        answers.prepare(resp)
        exchange = answers.Exchange(self._engine, read, req.env)
        chunk = exchange.first()
        if chunk is not None:
            answers.send_stream(resp, exchange, chunk)
        else:
            answers.send_answer(resp, exchange.response(), req.env)


def _named_by(parts: Sequence[Part]) -> str:
    for part in parts:
        if part.name == "model_name":
            return bytes(part.value).decode("utf-8", "replace")
    raise errors.bad_request("Parameter model_name is required.")


class PredictionResource(_RequestResource):
    """POST, GET and PUT /predictions/{name}[/{version}[/any/path]]."""

    _explain = False

    def on_post(
        self,
        req: falcon.Request,
        resp: falcon.Response,
        name: str,
        version: str = "",
        url_path: str = "",
    ) -> None:
        """Answer one request; the query is dropped."""
        call = TorchServeCall(explain=str(self._explain), url_path=url_path)
        self._answer(req, resp, name, version, call=call, explain=self._explain)

    on_get = on_post
    on_put = on_post


class ExplanationResource(PredictionResource):
    """The same below /explanations, for the handler's explanation."""

    _explain = True


class OlderResource(_RequestResource):
    """/invocations, /models/{name}/invoke and /{name}[/{version}]/predict: the query is kept."""

    def on_post(
        self, req: falcon.Request, resp: falcon.Response, name: str = "", version: str = ""
    ) -> None:
        """Answer one request."""
        query = list(query_of(req).items())
        self._answer(req, resp, name, version, call=TorchServeCall(), query=query)

    on_get = on_post
    on_put = on_post


class DescribeResource(ChangingResource):
    """GET /models/{name}[/{version}|/all][?customized=true], beside what changes the model."""

    def on_get(
        self, req: falcon.Request, resp: falcon.Response, name: str, version: str = ""
    ) -> None:
        """Answer a list of descriptions."""
        customized = req.get_param("customized", default="").lower() == "true"
        answers.prepare(resp)
        listed = self._routes.archives.described(name, version, customized=customized)
        answers.send_document(resp, listed)


class PingResource:
    """GET /ping: health, without credentials."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Answer "Healthy" when the server is ready."""
        answers.prepare(resp)
        healthy = self._engine.ready()
        answers.send_document(resp, {"status": "Healthy" if healthy else "Unhealthy"})
        if not healthy:
            resp.status = falcon.HTTP_500
