"""The generate extension: /generate answers at once, /generate_stream with server-sent events."""

from functools import partial

import falcon

from ksrv.protocol.generate import REQUEST, GenerateRequest, parse_generate, render_generate
from ksrv.protocol.plain_json import MOST_BYTES
from ksrv.protocol.rest import file_body
from ksrv.server.http.answers import JSON, send_parts, server_timing, set_handler_headers
from ksrv.server.http.byte_budget import Reservation
from ksrv.server.rest.inference_resource import InferenceResource
from ksrv.server.rest.streams import EVENT_STREAM, StreamedAnswer, send_stream


class GenerateResource(InferenceResource):
    """POST /v2/models/{name}[/versions/{version}]/generate, and /generate_stream."""

    most_json = MOST_BYTES
    subject = REQUEST

    def on_post(
        self, req: falcon.Request, resp: falcon.Response, name: str, version: str = ""
    ) -> None:
        """Answer with the whole text."""
        with Reservation(self._budget) as reservation:
            request, form = self._read(req, reservation, name, version)
            spec = request.target.spec
            response = self._infer(req, request)
        alone = file_body(response, request)
        body = alone.parts[0] if alone else render_generate(response, spec, form=form)
        set_handler_headers(resp, response.headers)
        resp.content_type = alone.content_type if alone else JSON
        if response.timings:
            resp.set_header("Server-Timing", server_timing(response))
        send_parts(resp, [body], len(body), self._budget, req.env)

    def on_post_stream(
        self, req: falcon.Request, resp: falcon.Response, name: str, version: str = ""
    ) -> None:
        """Answer with an event for each piece."""
        with Reservation(self._budget) as reservation:
            request, form = self._read(req, reservation, name, version)
            answer = StreamedAnswer(
                self._engine,
                request,
                EVENT_STREAM,
                partial(render_generate, spec=request.target.spec, form=form),
                environ=req.env,
            )
        send_stream(resp, answer, EVENT_STREAM, req.env)

    def _read(
        self, req: falcon.Request, reservation: Reservation, name: str, version: str
    ) -> GenerateRequest:
        target = self._engine.find(
            name, version
        )  # an unknown model is told before the body is read
        body = self._body(req, reservation)
        parsed = parse_generate(body, target.spec, self._limits, headers=self._headers(req))
        request = parsed.request
        request.target = target
        request.model_name = name
        request.model_version = version
        self._hand_over(req, request, reservation)
        return parsed
