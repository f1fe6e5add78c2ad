"""The routes of MLflow's scoring server, for the only MLflow model of a server: /invocations, /ping, /health, /version.

The body of a request to /invocations is passed on as it is; the model's process reads it (`runner.py`).
"""

from typing import TYPE_CHECKING, Any

import falcon

from ksrv.dialects.dialect import AppParts
from ksrv.dialects.mlflow.calls import (
    BODY,
    INVOCATIONS,
    PLATFORM,
    SCORING,
    VERSION,
    ScoringCall,
)
from ksrv.errors import KsrvError, NotFound, quote
from ksrv.model.spec import ModelSpec
from ksrv.protocol.error_texts import json_too_large
from ksrv.request import InferRequest, Tensor
from ksrv.server.http.answers import (
    error_headers,
    send_json,
    send_parts,
    set_fields,
    status_line,
)
from ksrv.server.http.body import Bound
from ksrv.server.http.request_ids import REQUEST_ID
from ksrv.server.http.wsgi_calls import WsgiCall
from ksrv.server.rest.inference_resource import InferenceResource
from ksrv.server.rest.route_guard import Needs

if TYPE_CHECKING:
    from ksrv.engine.engine import Engine

ERROR_CODES = {
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "RESOURCE_DOES_NOT_EXIST",
    429: "REQUEST_LIMIT_EXCEEDED",
    503: "TEMPORARILY_UNAVAILABLE",
}
"""MLflow's names of errors by HTTP status; other statuses below 500 are BAD_REQUEST, the rest INTERNAL_ERROR."""


def only_model(engine: "Engine") -> str:
    """Return the name of the only MLflow model, or of the only model if none is loaded.

    Raises:
        NotFound: The server has none or several.
    """
    loaded = engine.routable_models()
    names = {name for name, _, model in loaded if model.spec.platform == PLATFORM}
    served = {name for name, _, _ in loaded}
    found = sorted(names or {state.name for state in engine.index()} - served)
    if len(found) == 1:
        return found[0]
    has = f"{len(found)} ({', '.join(map(quote, found[:8]))})" if found else "none"
    raise NotFound(
        f"{INVOCATIONS} is for a server with one MLflow model, and this server has {has}; any model is called at "
        f"/v2/models/NAME/infer"
    )


class InvocationsResource(InferenceResource):
    """POST /invocations."""

    def _bound(self, req: falcon.Request, spec: ModelSpec | None) -> Bound | None:
        """See `InferenceResource`. Every form of a body becomes Python objects in MLflow, as JSON does."""
        return Bound(self._limits.json, json_too_large)

    def wanted_body(self, req: falcon.Request, name: str = "", version: str = "") -> int:
        """See `InferenceResource.wanted_body`."""
        return super().wanted_body(req, only_model(self._engine))

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Answer a request in any form that MLflow reads."""
        name = only_model(self._engine)

        def parse(body: memoryview, spec: ModelSpec) -> InferRequest:
            return InferRequest(
                name,
                id=req.env[REQUEST_ID],
                inputs=[Tensor(BODY, "BYTES", (1,), [body])],
                headers=self._headers(req),
                nbytes=len(body),
                dialect=SCORING,
                facts=ScoringCall(content_type=req.content_type or ""),
            )

        response = self._run(WsgiCall, req, name, "", parse).response()
        data: Any = response.outputs[0].data
        resp.status = status_line(response.facts["status"])
        resp.content_type = response.facts["content_type"]
        send_parts(resp, [data[0]], len(data[0]), req.env)


class ServerResource:
    """GET /ping, /health and /version."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Answer whether the model serves: 200, or 503."""
        ready = self._engine.model_ready(only_model(self._engine))
        resp.status = status_line(200 if ready else 503)
        resp.content_type = falcon.MEDIA_JSON
        resp.data = b"\n"

    def on_get_version(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Answer the version of MLflow in the model's interpreter."""
        spec = self._engine.describe(only_model(self._engine))
        resp.content_type = falcon.MEDIA_TEXT
        resp.text = str(spec.parameters.get(VERSION, ""))


def send_error(
    req: falcon.Request,
    resp: falcon.Response,
    error: KsrvError | falcon.HTTPError,
    unexpected: bool,
) -> bool:
    """Answer a failure of /invocations in MLflow's form; see `ksrv.dialects.dialect.ErrorForm`."""
    if req.path != INVOCATIONS or isinstance(error, falcon.HTTPError):
        return False
    status = int(error.http_status)
    general = "BAD_REQUEST" if status < 500 else "INTERNAL_ERROR"
    document = {"error_code": ERROR_CODES.get(status, general), "message": error.message}
    send_json(resp, document, status)
    set_fields(resp, error_headers(error))
    return True


def add_routes(app: Any, parts: AppParts) -> None:
    """Add the routes to the app, and the form of their errors."""
    server = ServerResource(parts.engine)
    app.add_route(INVOCATIONS, InvocationsResource(parts), needs=Needs.TOKEN)
    for path in ("/ping", "/health"):
        app.add_route(path, server, needs=Needs.NOTHING)
    app.add_route("/version", server, suffix="version", needs=Needs.TOKEN)
    parts.error_forms.append(send_error)
