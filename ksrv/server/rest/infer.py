"""The infer and explain routes: body to request, request through the engine, answer to parts.

`answer` is the whole way for a body that has been received. The HTTP server goes the same way without waiting
(`ksrv.server.http.fast_path`), with the same parser, engine and renderer.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import falcon
import msgspec

from ksrv._native.memory.memory_budget import MemoryBudget
from ksrv.errors import InvalidRequest
from ksrv.limits import Limits
from ksrv.protocol import kserve_v1, rest
from ksrv.protocol.error_texts import json_too_large
from ksrv.protocol.shared_memory import SharedMemoryRegistry
from ksrv.protocol.uploads import is_upload
from ksrv.request import InferRequest, InferResponse
from ksrv.server.credentials import Access
from ksrv.server.http.body import DIGITS, Bound, content_length, padding, read_body
from ksrv.server.http.byte_budget import Reservation
from ksrv.server.http.client_watch import ThreadWaiter
from ksrv.server.http.request_headers import request_headers
from ksrv.server.memory_regions import AuthorizedRegistry
from ksrv.server.rest.responses import send_parts, server_timing, set_handler_headers
from ksrv.server.rest.route_guard import check_control
from ksrv.server.rest.streams import StreamedAnswer, send_stream, stream_type
from ksrv.server.settings import ServerSettings

if TYPE_CHECKING:
    from ksrv.engine.engine import Engine
    from ksrv.engine.model import ModelVersion

HEADER_LENGTH = "Inference-Header-Content-Length"


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


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer: its body, and the response that its headers are made of."""

    body: rest.RenderedBody
    response: InferResponse


def answer(
    engine: "Engine",
    limits: Limits,
    *,
    model: str,
    version: str,
    body: memoryview,
    header_length: str | None,
    headers: Mapping[str, str],
    explain: bool = False,
    nan_literals: bool = False,
    run: Callable[[InferRequest], InferResponse],
    regions: SharedMemoryRegistry | None = None,
    target: "ModelVersion | None" = None,
    input_name: str | None = None,
    form: Form = V2,
) -> Answer:
    """Run one received request and render its answer.

    Args:
        engine: Where it runs.
        limits: Bounds for the parser.
        model: The model's name from the path.
        version: The version from the path, or "".
        body: The received bytes.
        header_length: The raw `Inference-Header-Content-Length`, if there is one.
        headers: The request's headers, names in lower case.
        explain: Whether to explain rather than infer.
        nan_literals: Whether JSON answers hold NaN as a literal.
        run: Runs the request and returns its response.
        regions: The shared memory that it may name; None where that is off.
        target: The model version that `Engine.find` returned before the body was read.
        input_name: The input that a body which is an image is for, where the path names it.
        form: How the body is read and the answer written.

    Raises:
        KsrvError: Whatever the client is to be told.
    """
    if target is None or target.retired:
        target = engine.find(model, version)
    request = form.parse(
        body,
        header_length,
        target.spec,
        limits,
        headers=headers,
        regions=regions,
        input_name=input_name,
    )
    request.target = target
    request.model_name = model
    request.model_version = version
    request.explain = explain
    response = run(request)
    rendered = form.render(response, request, nan_literals=nan_literals, regions=regions)
    return Answer(rendered, response)


def json_bound(
    header_length: str | None, length: int | None, limits: Limits, content_type: str | None = None
) -> Bound | None:
    """Return the limit on a body that is JSON as a whole; None where only its beginning is, or nothing.

    Args:
        header_length: The raw `Inference-Header-Content-Length`, if there is one. The parser refuses a
            value later that is not a number, or beyond the body.
        length: The announced length of the body, if there is one.
        limits: Where JSON is bounded.
        content_type: The request's `Content-Type`, if there is one.

    Raises:
        BodyTooLarge: The announced JSON is too long by itself.
    """
    if header_length is None:
        if is_upload(content_type):
            return None
        return Bound(limits.json, json_too_large)
    announced = int(header_length) if DIGITS.fullmatch(header_length) is not None else 0
    if announced > limits.json and (length is None or announced <= length):
        raise json_too_large(announced, limits.json)
    return None


def _input_name(req: falcon.Request) -> str | None:
    """Return the input that the path names for an image: `?input=NAME`.

    Raises:
        InvalidRequest: It names several.
    """
    names = req.get_param_as_list("input") or []
    if len(names) > 1:
        raise InvalidRequest(f"the path names {len(names)} inputs with ?input=; it may name one")
    return names[0] if names else None


class InferResource:
    """POST /v2/models/{name}[/versions/{version}]/infer, and /explain.

    Args:
        engine: Where requests run.
        settings: Limits and the form of answers.
        budget: The bytes in flight.
        access: Who may use shared memory, and whether `Authorization` is kept from handlers.
        waiter: Waits for the response.
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
        waiter: ThreadWaiter,
        shared_memory: SharedMemoryRegistry | None = None,
        form: Form = V2,
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._budget = budget
        self._access = access
        self._shared_memory = shared_memory
        self._waiter = waiter
        self._form = form
        self._limits = settings.limits
        if form is V1:
            most = min(settings.limits.json, kserve_v1.MOST_BYTES)
            self._limits = msgspec.structs.replace(settings.limits, json=most)

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
        settings = self._settings
        target = self._engine.find(
            name, version
        )  # an unknown model is told before its body is read
        header_length = req.get_header(HEADER_LENGTH)
        input_name = _input_name(req)
        regions: SharedMemoryRegistry | None = None
        if self._shared_memory is not None:
            check = partial(check_control, self._access, req.env)
            regions = AuthorizedRegistry(self._shared_memory, check)
        with Reservation(self._budget) as reservation:
            body = read_body(
                req.env,
                self._limits,
                reservation,
                offset=padding(header_length),
                bound=json_bound(
                    header_length, content_length(req.env), self._limits, req.content_type
                ),
                decompress=settings.decompress_requests,
                on_read=req.context.mark_reading,
            )

            def run(request: InferRequest) -> InferResponse:
                request.client = self._access.client_of(req.get_header("Authorization"))
                reservation.close()  # from here on the queue counts the request
                return self._waiter.infer(self._engine, request, self._waiter.client_of(req.env))

            content_type = stream_type(req.get_header("Accept"))
            if content_type is not None:
                request = rest.parse_infer(
                    body,
                    header_length,
                    target.spec,
                    settings.limits,
                    headers=request_headers(req.env, with_credentials=not self._access.needs_token),
                    regions=regions,
                    input_name=input_name,
                )
                request.target = target
                request.model_name = name
                request.model_version = version
                request.explain = explain
                request.client = self._access.client_of(req.get_header("Authorization"))
                reservation.close()  # from here on the queue counts the request
                self._stream(req, resp, request, content_type, regions)
                return
            done = answer(
                self._engine,
                self._limits,
                model=name,
                version=version,
                body=body,
                header_length=header_length,
                headers=request_headers(req.env, with_credentials=not self._access.needs_token),
                explain=explain,
                nan_literals=settings.nan_literals,
                run=run,
                regions=regions,
                target=target,
                input_name=input_name,
                form=self._form,
            )
        set_handler_headers(resp, done.response.headers)
        resp.content_type = done.body.content_type
        if done.body.header_length is not None:
            resp.set_header(HEADER_LENGTH, str(done.body.header_length))
        if done.response.timings:
            resp.set_header("Server-Timing", server_timing(done.response))
        accept = req.get_header("Accept-Encoding") if settings.compress_responses else None
        send_parts(
            resp,
            done.body.parts,
            done.body.content_length,
            self._budget,
            req.env,
            accept_encoding=accept,
        )

    def _stream(
        self,
        req: falcon.Request,
        resp: falcon.Response,
        request: InferRequest,
        content_type: str,
        regions: SharedMemoryRegistry | None,
    ) -> None:
        """Answer while the handler makes the answer."""

        def render(response: InferResponse) -> bytes:
            done = rest.render_infer(
                response, request, nan_literals=self._settings.nan_literals, regions=regions
            )
            return bytes(done.parts[0])

        streamed = StreamedAnswer(
            self._engine,
            request,
            content_type,
            render,
            waiter=self._waiter,
            environ=req.env,
        )
        send_stream(resp, streamed, content_type, req.env)
