"""The routes of the generate extension: /generate sends one answer, /generate_stream server-sent events."""

from functools import partial
from typing import Any

import falcon

from ksrv.dialects.triton.extensions.generate.bodies import (
    REQUEST,
    parse_generate,
    render_generate,
)
from ksrv.dialects.triton.extensions.generate.descriptions import GENERATE, GENERATE_STREAM
from ksrv.model.spec import ModelSpec
from ksrv.protocol.plain_json import MOST_BYTES
from ksrv.protocol.rest import RenderedBody, file_body
from ksrv.request import InferRequest
from ksrv.server.http.answers import JSON, answer_fields, send_parts, set_fields
from ksrv.server.http.wsgi_calls import StreamedCall, WsgiCall
from ksrv.server.rest.inference_resource import InferenceResource
from ksrv.server.rest.route_guard import add_model_route
from ksrv.server.rest.streams import EVENT_STREAM, StreamForm, send_stream
from ksrv.server.shared.parts import ServerParts


class GenerateResource(InferenceResource):
    """POST /v2/models/{name}[/versions/{version}]/generate, and /generate_stream."""

    most_json = MOST_BYTES
    subject = REQUEST

    def on_post(
        self, req: falcon.Request, resp: falcon.Response, name: str, version: str = ""
    ) -> None:
        """Answer with one document."""
        form = StreamForm(EVENT_STREAM)
        call = self._run(WsgiCall, req, name, version, partial(self._parse, req, form))
        response = call.response()
        rendered = file_body(response, call.request)
        if rendered is None:
            body = form.render(response)
            rendered = RenderedBody([body], len(body), None, JSON)
        set_fields(resp, answer_fields(response, rendered))
        send_parts(resp, rendered.parts, rendered.content_length, req.env)

    def on_post_stream(
        self, req: falcon.Request, resp: falcon.Response, name: str, version: str = ""
    ) -> None:
        """Answer with a server-sent event for each part of the answer."""
        form = StreamForm(EVENT_STREAM)

        def parse(body: memoryview, spec: ModelSpec) -> InferRequest:
            request = self._parse(req, form, body, spec)
            request.file_type = ""  # events are JSON
            return request

        kind = partial(StreamedCall, form_of=form.chunk_form)
        send_stream(resp, self._run(kind, req, name, version, parse), form)

    def _parse(
        self, req: falcon.Request, form: StreamForm, body: memoryview, spec: ModelSpec
    ) -> InferRequest:
        """Return the request, and set what writes its answers."""
        request, answer = parse_generate(body, spec, self._limits, headers=self._headers(req))
        form.render = partial(render_generate, spec=spec, form=answer)
        return request


def add_routes(app: "falcon.App[Any, Any]", parts: ServerParts) -> None:
    """Add the routes to an app."""
    generate = GenerateResource(parts)
    add_model_route(app, "/generate", generate, post=GENERATE)
    add_model_route(app, "/generate_stream", generate, "stream", post=GENERATE_STREAM)
