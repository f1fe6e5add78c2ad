"""TorchServe's REST routes for inference, and the table of all its REST routes.

If the setting `torchserve_api` is on, they serve archives on the main HTTP address. A request becomes one row whose
parts are BYTES tensors; a `ksrv.dialects.torchserve.calls.TorchServeCall` has the facts that the route adds. WSGI does
not keep the case of header names, so handlers see `X-My-Header` for any case that the client wrote.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import falcon

from ksrv.dialects.dialect import AppParts
from ksrv.dialects.torchserve.calls import ROUTES, TorchServeCall
from ksrv.dialects.torchserve.routes import errors
from ksrv.dialects.torchserve.routes import responses as answers
from ksrv.dialects.torchserve.routes.archives import Archives
from ksrv.dialects.torchserve.routes.form_parts import Part, read_parts
from ksrv.dialects.torchserve.routes.management import ManagementResource, query_of
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

KSERVE_PATHS = ("/v2", "/v1", "/metrics")
"""Errors on these paths are never in TorchServe's form."""


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
    inference, management = InferenceRoutes(parts, archives), ManagementResource(parts, archives)
    for path, resource, suffix, needs in (
        ("/predictions/{name}", inference, "", Needs.TOKEN),
        ("/predictions/{name}/{version}", inference, "", Needs.TOKEN),
        ("/predictions/{name}/{version}/{url_path:path}", inference, "", Needs.TOKEN),
        ("/explanations/{name}", inference, "explain", Needs.TOKEN),
        ("/explanations/{name}/{version}", inference, "explain", Needs.TOKEN),
        ("/explanations/{name}/{version}/{url_path:path}", inference, "explain", Needs.TOKEN),
        ("/invocations", inference, "older", Needs.TOKEN),
        ("/models/{name}/invoke", inference, "older", Needs.TOKEN),
        ("/{name}/predict", inference, "older", Needs.TOKEN),
        ("/{name}/{version}/predict", inference, "older", Needs.TOKEN),
        ("/models", management, "list", Needs.TOKEN),
        ("/models/{name}", management, "", Needs.TOKEN),
        ("/models/{name}/{version}", management, "", Needs.TOKEN),
        ("/models/{name}/{version}/set-default", management, "default", Needs.CONTROL),
        ("/ping", management, "ping", Needs.NOTHING),
    ):
        app.add_route(path, resource, suffix=suffix or None, needs=needs)
    parts.error_forms.append(send_error)


class InferenceRoutes(InferenceResource):
    """The routes for inference."""

    def __init__(self, parts: AppParts, archives: Archives) -> None:
        super().__init__(parts)
        self._archives = archives

    def _bound(self, req: falcon.Request, spec: ModelSpec | None) -> Bound | None:
        """See `InferenceResource`. The handler reads the body, so only the limit on all bodies applies."""
        return None

    def wanted_body(
        self, req: falcon.Request, name: str = "", version: str = "", url_path: str = ""
    ) -> int:
        """See `InferenceResource.wanted_body`."""
        if name:  # refuses an unknown model before its body is received
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
            name: The model's name, "" if a part of the request names it.
            version: The version, or "".
            call: The facts of the route; this method adds the content types of the parts.
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
                facts={**call, "content_types": content_types},
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

    def on_post(
        self,
        req: falcon.Request,
        resp: falcon.Response,
        name: str,
        version: str = "",
        url_path: str = "",
        *,
        explain: bool = False,
    ) -> None:
        """Answer a prediction; the query is dropped."""
        call = TorchServeCall(explain=str(explain), url_path=url_path)
        self._answer(req, resp, name, version, call=call, explain=explain)

    on_get = on_post
    on_put = on_post

    def on_post_explain(self, req: falcon.Request, resp: falcon.Response, **fields: str) -> None:
        """Answer an explanation."""
        self.on_post(req, resp, **fields, explain=True)

    on_get_explain = on_post_explain
    on_put_explain = on_post_explain

    def on_post_older(
        self, req: falcon.Request, resp: falcon.Response, name: str = "", version: str = ""
    ) -> None:
        """Answer a prediction of the older routes, whose query is part of the input."""
        query = list(query_of(req).items())
        self._answer(req, resp, name, version, call=TorchServeCall(), query=query)

    on_get_older = on_post_older
    on_put_older = on_post_older


def _named_by(parts: Sequence[Part]) -> str:
    for part in parts:
        if part.name == "model_name":
            return bytes(part.value).decode("utf-8", "replace")
    raise errors.bad_request("Parameter model_name is required.")
