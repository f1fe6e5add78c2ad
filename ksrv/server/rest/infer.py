"""The infer and explain routes in the Falcon app: parse the body, run the request in the engine, send the answer.

`ksrv.server.rest.fast_path` does the same without WSGI, for infer requests in a usual form.
"""

from functools import partial
from typing import Any

import falcon

from ksrv.errors import InvalidRequest
from ksrv.model.spec import ModelSpec
from ksrv.protocol import rest
from ksrv.protocol.shared_memory import CallerMemory
from ksrv.request import InferRequest, InferResponse
from ksrv.server.http.answers import answer_fields, send_parts, set_fields
from ksrv.server.http.wsgi_calls import StreamedCall, WsgiCall
from ksrv.server.rest.inference_resource import InferenceResource
from ksrv.server.rest.route_guard import control_user
from ksrv.server.rest.streams import StreamForm, send_stream, stream_type


def _input_name(req: falcon.Request) -> str | None:
    """Return the input that the path names for an image: `?input=NAME`.

    Raises:
        InvalidRequest: It names several inputs.
    """
    names = req.get_param_as_list("input") or []
    if len(names) > 1:
        raise InvalidRequest(f"the path names {len(names)} inputs with ?input=; it may name one")
    return names[0] if names else None


class InferResource(InferenceResource):
    """POST /v2/models/{name}[/versions/{version}]/infer, and /explain.

    Attributes:
        stream_type: Returns the content type of the stream for an `Accept` header; "" for one answer.
    """

    stream_type = staticmethod(stream_type)

    def wanted_body(self, req: falcon.Request, name: str = "", version: str = "") -> int:
        """See `InferenceResource.wanted_body`."""
        _input_name(req)
        return super().wanted_body(req, name, version)

    def on_post(
        self, req: falcon.Request, resp: falcon.Response, name: str, version: str = ""
    ) -> None:
        """Answer an inference request."""
        self._answer(req, resp, name, version, explain=False)

    def on_post_explain(
        self, req: falcon.Request, resp: falcon.Response, name: str, version: str = ""
    ) -> None:
        """Answer a request to explain."""
        self._answer(req, resp, name, version, explain=True)

    def _answer(
        self, req: falcon.Request, resp: falcon.Response, name: str, version: str, *, explain: bool
    ) -> None:
        input_name = _input_name(req)
        memory: CallerMemory | None = None
        if self._shared_memory is not None:
            memory = self._shared_memory.of_caller(partial(control_user, self._access, req.env))

        form = StreamForm(
            self.stream_type(req.get_header("Accept")),
            has_arrays=not self._settings.nan_literals,
        )

        def parse(body: memoryview, spec: ModelSpec) -> InferRequest:
            given = {"memory": memory, "input_name": input_name}
            request = self._parse(req, body, spec, explain=explain, **given)
            render = partial(self._render, request, memory)
            # The answers of a stream are JSON, which is one part.
            form.render = lambda response: bytes(render(response).parts[0])
            return request

        if not form.content_type:
            call = self._run(WsgiCall, req, name, version, parse)
        else:
            kind = partial(StreamedCall, form_of=form.chunk_form)
            call = self._run(kind, req, name, version, parse)
            if call.request.stream is not None:
                send_stream(resp, call, form)
                return
            call.first()  # the answer has no parts after all, such as a file: wait for its end
        self._send(req, resp, call.request, call.response(), memory)

    def _parse(
        self, req: falcon.Request, body: memoryview, spec: ModelSpec, *, explain: bool, **given: Any
    ) -> InferRequest:
        length, headers = req.get_header(rest.HEADER_LENGTH), self._headers(req)
        request = rest.parse_infer(body, length, spec, self._limits, headers=headers, **given)
        request.explain = explain
        return request

    def _render(
        self, request: InferRequest, memory: CallerMemory | None, response: InferResponse
    ) -> rest.RenderedBody:
        literals = self._settings.nan_literals
        return rest.render_infer(response, request, nan_literals=literals, memory=memory)

    def _send(
        self,
        req: falcon.Request,
        resp: falcon.Response,
        request: InferRequest,
        response: InferResponse,
        memory: CallerMemory | None,
    ) -> None:
        rendered = self._render(request, memory, response)
        set_fields(resp, answer_fields(response, rendered))
        compress = self._settings.compress_responses
        send_parts(
            resp,
            rendered.parts,
            rendered.content_length,
            req.env,
            accept_encoding=req.get_header("Accept-Encoding") if compress else None,
        )
