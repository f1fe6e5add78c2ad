"""The routes of the generate extension: /generate sends one answer, /generate_stream server-sent events."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import falcon

from ksrv.dialects.dialect import AppParts
from ksrv.dialects.triton.extensions.generate.bodies import REQUEST, parse_generate, render_generate
from ksrv.dialects.triton.extensions.generate.descriptions import GENERATE, GENERATE_STREAM
from ksrv.limits import Limits
from ksrv.model.spec import ModelSpec
from ksrv.protocol.plain_json import MOST_BYTES
from ksrv.protocol.rest import RenderedBody, file_body, parse_infer, render_infer
from ksrv.request import InferRequest, InferResponse
from ksrv.server.http.answers import JSON, answer_fields, send_parts, set_fields
from ksrv.server.http.wsgi_calls import StreamedCall, WsgiCall
from ksrv.server.rest.inference_resource import InferenceResource
from ksrv.server.rest.route_guard import MODEL, add_model_route
from ksrv.server.rest.streams import EVENT_STREAM, StreamForm, send_stream
from ksrv.server.shared.plain_route import PlainRoute, ReadBody


class GenerateResource(InferenceResource):
    """POST /v2/models/{name}[/versions/{version}]/generate, and /generate_stream.

    `_run` of the base class receives the body, calls `parse`, and submits the request.
    """

    most_json = MOST_BYTES
    subject = REQUEST

    def on_post(
        self, req: falcon.Request, resp: falcon.Response, name: str, version: str = ""
    ) -> None:
        """Answer with one document."""
        render: Callable[[InferResponse], RenderedBody]

        def parse(body: memoryview, spec: ModelSpec) -> InferRequest:
            nonlocal render
            request, render = read_generate(body, spec, self._limits, self._headers(req))
            return request

        response = self._run(WsgiCall, req, name, version, parse).response()
        rendered = render(response)
        set_fields(resp, answer_fields(response, rendered))
        send_parts(resp, rendered.parts, rendered.content_length, req.env)

    def on_post_stream(
        self, req: falcon.Request, resp: falcon.Response, name: str, version: str = ""
    ) -> None:
        """Answer with a server-sent event for each part of the answer."""
        form = StreamForm(EVENT_STREAM)

        def parse(body: memoryview, spec: ModelSpec) -> InferRequest:
            headers = self._headers(req)
            if spec.accepts_any_inputs:  # MLServer's route of this name takes requests of KServe v2
                request = parse_infer(body, None, spec, self._limits, headers=headers)
                form.render = lambda response: bytes(render_infer(response, request).parts[0])
                return request
            request, answer = parse_generate(body, spec, self._limits, headers=headers)
            request.accept = None  # events are JSON
            form.render = partial(render_generate, spec=spec, form=answer)
            return request

        kind = partial(StreamedCall, form_of=form.chunk_form)
        send_stream(resp, self._run(kind, req, name, version, parse), form)


def read_generate(
    body: memoryview, spec: ModelSpec, limits: Limits, headers: Mapping[str, str]
) -> ReadBody:
    """Read a generate request that has one answer; see `PlainRoute`."""
    request, form = parse_generate(body, spec, limits, headers=headers)

    def render(response: InferResponse) -> RenderedBody:
        text = render_generate(response, spec, form=form)
        return RenderedBody([text], len(text), None, JSON)

    return request, lambda response: file_body(response, request) or render(response)


def add_routes(app: "falcon.App[Any, Any]", parts: AppParts) -> None:
    """Add the routes to an app."""
    generate = GenerateResource(parts)
    add_model_route(app, "/generate", generate, post=GENERATE)
    for prefix in (MODEL, MODEL + "/versions/{version}"):
        # Requests and answers are objects of the tensors, without a key for rows, for every model.
        route = PlainRoute("", "", read_generate, lambda spec: True)
        parts.plain_routes[prefix + "/generate"] = route
    add_model_route(app, "/generate_stream", generate, "stream", post=GENERATE_STREAM)
