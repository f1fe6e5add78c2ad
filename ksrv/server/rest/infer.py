"""The infer and explain routes: body to request, request through the engine, answer to parts.

The HTTP server goes the same way without waiting (`ksrv.server.rest.fast_path`), with the same parser, engine
and renderer.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import falcon

from ksrv._native.memory.memory_budget import MemoryBudget
from ksrv.dialects.kserve_v1 import bodies as kserve_v1
from ksrv.errors import InvalidRequest
from ksrv.protocol import rest
from ksrv.protocol.shared_memory import SharedMemoryRegistry
from ksrv.request import InferRequest, InferResponse
from ksrv.server.credentials import Access
from ksrv.server.http.answers import send_parts, server_timing, set_handler_headers
from ksrv.server.http.byte_budget import Reservation
from ksrv.server.memory_regions import AuthorizedRegistry, SharedMemory
from ksrv.server.rest.inference_resource import HEADER_LENGTH, InferenceResource
from ksrv.server.rest.route_guard import memory_user
from ksrv.server.rest.streams import StreamedAnswer, send_stream, stream_type
from ksrv.server.settings import ServerSettings

if TYPE_CHECKING:
    from ksrv.engine.engine import Engine


@dataclass(frozen=True, slots=True)
class Form:
    """How bodies are read and answers written.

    Attributes:
        parse: Reads a body, with the arguments of `rest.parse_infer`.
        render: Writes an answer, with the arguments of `rest.render_infer`.
    """

    parse: Callable[..., InferRequest]
    render: Callable[..., rest.RenderedBody]


V2 = Form(rest.parse_infer, rest.render_infer)
V1 = Form(kserve_v1.parse_predict, kserve_v1.render_predict)


def _input_name(req: falcon.Request) -> str | None:
    """Return the input that the path names for an image: `?input=NAME`.

    Raises:
        InvalidRequest: It names several.
    """
    names = req.get_param_as_list("input") or []
    if len(names) > 1:
        raise InvalidRequest(f"the path names {len(names)} inputs with ?input=; it may name one")
    return names[0] if names else None


class InferResource(InferenceResource):
    """POST /v2/models/{name}[/versions/{version}]/infer, and /explain.

    Args:
        engine: See `InferenceResource`.
        access: Who may use shared memory, too.
        shared_memory: The clients' regions; None where shared memory is off.
        form: How bodies are read and answers written.
    """

    def __init__(
        self,
        engine: "Engine",
        settings: ServerSettings,
        budget: MemoryBudget,
        access: Access,
        *,
        shared_memory: SharedMemory | None = None,
        form: Form = V2,
    ) -> None:
        if form is V1:
            self.most_json, self.subject = kserve_v1.MOST_BYTES, kserve_v1.REQUEST
        super().__init__(engine, settings, budget, access)
        self._shared_memory = shared_memory
        self._form = form

    def wanted_body(self, req: falcon.Request, name: str = "", version: str = "") -> int:
        """See `InferenceResource.wanted_body`."""
        _input_name(req)
        return super().wanted_body(req, name, version)

    def on_post(
        self, req: falcon.Request, resp: falcon.Response, name: str, version: str = ""
    ) -> None:
        """Answer an inference request."""
        self._run(req, resp, name, version, explain=False)

    def on_post_explain(
        self, req: falcon.Request, resp: falcon.Response, name: str, version: str = ""
    ) -> None:
        """Answer a request to explain."""
        self._run(req, resp, name, version, explain=True)

    def _run(
        self, req: falcon.Request, resp: falcon.Response, name: str, version: str, *, explain: bool
    ) -> None:
        target = self._engine.find(
            name, version
        )  # an unknown model is told before the body is read
        input_name = _input_name(req)
        regions: SharedMemoryRegistry | None = None
        if self._shared_memory is not None:
            user = partial(memory_user, self._access, req.env)
            regions = AuthorizedRegistry(self._shared_memory, user)
        stream = stream_type(req.get_header("Accept")) if self._form is V2 else None
        with Reservation(self._budget) as reservation:
            body = self._body(req, reservation)
            if target.retired:
                target = self._engine.find(name, version)
            request = self._form.parse(
                body,
                req.get_header(HEADER_LENGTH),
                target.spec,
                self._limits,
                headers=self._headers(req),
                regions=regions,
                input_name=input_name,
            )
            del body  # the request holds views of the parts that it needs
            if request.file_type:
                stream = None
            request.target = target
            request.model_name = name
            request.model_version = version
            request.explain = explain
            self._hand_over(req, request, reservation)
            render = partial(
                self._form.render,
                request=request,
                nan_literals=self._settings.nan_literals,
                regions=regions,
            )
            if stream is not None:
                self._stream(req, resp, request, stream, render)
                return
            response = self._infer(req, request)
            rendered = render(response)
        self._send(req, resp, response, rendered)

    def _send(
        self,
        req: falcon.Request,
        resp: falcon.Response,
        response: InferResponse,
        rendered: rest.RenderedBody,
    ) -> None:
        set_handler_headers(resp, response.headers)
        resp.content_type = rendered.content_type
        if rendered.header_length is not None:
            resp.set_header(HEADER_LENGTH, str(rendered.header_length))
        if response.timings:
            resp.set_header("Server-Timing", server_timing(response))
        compress = self._settings.compress_responses
        send_parts(
            resp,
            rendered.parts,
            rendered.content_length,
            self._budget,
            req.env,
            accept_encoding=req.get_header("Accept-Encoding") if compress else None,
        )

    def _stream(
        self,
        req: falcon.Request,
        resp: falcon.Response,
        request: InferRequest,
        content_type: str,
        render: Callable[[InferResponse], rest.RenderedBody],
    ) -> None:
        """Answer while the handler makes the answer."""
        streamed = StreamedAnswer(
            self._engine,
            request,
            content_type,
            lambda response: bytes(render(response).parts[0]),
            environ=req.env,
        )
        send_stream(resp, streamed, content_type, req.env)
