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
from ksrv.dialects.torchserve.routes.management import (
    ChangingResource,
    ManagementRoutes,
)
from ksrv.errors import KsrvError
from ksrv.request import InferRequest, Tensor
from ksrv.server.call import Find
from ksrv.server.http.body import expected_body, read_body
from ksrv.server.http.byte_budget import Reservation
from ksrv.server.http.request_headers import request_headers
from ksrv.server.http.request_ids import REQUEST_ID
from ksrv.server.http.wsgi_calls import find_before_body
from ksrv.server.rest.route_guard import Needs

if TYPE_CHECKING:
    pass

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


class TorchServeRoutes:
    """The routes and the state that they share.

    Args:
        parts: See `AppParts`.
    """

    def __init__(self, parts: AppParts) -> None:
        self.engine = parts.engine
        self.archives = Archives(parts.engine)
        self._management = ManagementRoutes(self.archives, parts.access, parts.read_document)
        self._settings = parts.settings
        self._budget = parts.budget
        self._access = parts.access
        self._with_credentials = not parts.access.hides_tokens
        parts.error_forms.append(send_error)

    def add_routes(self, app: "falcon.App[Any, Any]") -> None:
        """Add the routes to an app."""
        routes: list[tuple[str, object]] = []
        for prefix, resource in (
            ("/predictions/{name}", PredictionResource(self)),
            ("/explanations/{name}", ExplanationResource(self)),
        ):
            routes += [
                (prefix, resource),
                (prefix + "/{version}", resource),
                (prefix + "/{version}/{url_path:path}", resource),
            ]
        older = OlderResource(self)
        described = DescribeResource(self._management)
        routes += [
            ("/invocations", older),
            ("/models/{name}/invoke", older),
            ("/{name}/predict", older),
            ("/{name}/{version}/predict", older),
            ("/models/{name}", described),
            ("/models/{name}/{version}", described),
        ]
        for path, answers_it in routes:
            app.add_route(path, answers_it, needs=Needs.TOKEN)
        self._management.add_routes(app)
        app.add_route("/ping", PingResource(self), needs=Needs.NOTHING)

    def wanted_body(self, req: falcon.Request, name: str, version: str) -> int:
        """Return the most bytes that a request's body may have, judged by its head.

        Raises:
            KsrvError: The head shows that the request will be refused.
        """
        if name:
            self.archives.find(name, version, partial(find_before_body, self.engine, req.env))
        with Reservation(self._budget) as reservation:
            return expected_body(
                req.env,
                self._settings.limits,
                reservation,
                decompress=self._settings.decompress_requests,
            ).most

    def run(
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
        answers.prepare(resp)
        read = partial(self._read, req, name, version, call, query, explain=explain)
        exchange = answers.Exchange(self.engine, read, req.env)
        chunk = exchange.first()
        if chunk is not None:
            answers.send_stream(resp, exchange, chunk)
        else:
            answers.send_answer(resp, exchange.response(), req.env)

    def _read(
        self,
        req: falcon.Request,
        name: str,
        version: str,
        call: TorchServeCall,
        query: Sequence[tuple[str, str]],
        find: Find,
        *,
        explain: bool,
    ) -> InferRequest:
        # An unknown model is refused before the body is read.
        target = self.archives.find(name, version, find) if name else None
        with Reservation(self._budget) as reservation:  # afterwards the queue counts the bytes
            body = read_body(
                req.env,
                self._settings.limits,
                reservation,
                decompress=self._settings.decompress_requests,
            )
            parts = read_parts(body, req.content_type, query)
        if target is None:
            name = self._named_by(parts)
            target = self.archives.find(name, version, find)
        return InferRequest(
            name,
            version,
            req.env[REQUEST_ID],
            [Tensor(part.name, "BYTES", (1,), [part.value]) for part in parts],
            headers=request_headers(
                req.env, with_credentials=self._with_credentials, spelling=str.title
            ),
            explain=explain,
            nbytes=len(body),
            dialect=ROUTES,
            facts=replace(
                call, content_types={part.name: part.content_type for part in parts}
            ).facts(),
            client=self._access.client_of(req.get_header("Authorization")),
            target=target,
        )

    def _named_by(self, parts: Sequence[Part]) -> str:
        for part in parts:
            if part.name == "model_name":
                return bytes(part.value).decode("utf-8", "replace")
        raise errors.bad_request("Parameter model_name is required.")


class _Resource:
    def __init__(self, routes: TorchServeRoutes) -> None:
        self._routes = routes


class _RequestResource(_Resource):
    def wanted_body(
        self, req: falcon.Request, name: str = "", version: str = "", url_path: str = ""
    ) -> int:
        """See `TorchServeRoutes.wanted_body`."""
        return self._routes.wanted_body(req, name, version)


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
        self._routes.run(req, resp, name, version, call=call, explain=self._explain)

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
        query = [(key, _last(value)) for key, value in req.params.items()]
        self._routes.run(req, resp, name, version, call=TorchServeCall(), query=query)

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


class PingResource(_Resource):
    """GET /ping: health, without credentials."""

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Answer "Healthy" when the server is ready."""
        answers.prepare(resp)
        healthy = self._routes.engine.ready()
        answers.send_document(resp, {"status": "Healthy" if healthy else "Unhealthy"})
        if not healthy:
            resp.status = falcon.HTTP_500


def _last(value: "str | list[str]") -> str:
    return value[-1] if isinstance(value, list) else value
