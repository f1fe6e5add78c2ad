"""The generate extension: /generate answers at once, /generate_stream with server-sent events."""

from typing import TYPE_CHECKING

import falcon
import msgspec

from ksrv._native.memory.memory_budget import MemoryBudget
from ksrv.protocol.generate import MOST_BYTES, parse_generate, render_generate
from ksrv.request import InferRequest, InferResponse
from ksrv.server.credentials import Access
from ksrv.server.http.body import content_length, read_body
from ksrv.server.http.byte_budget import Reservation
from ksrv.server.http.client_watch import ThreadWaiter
from ksrv.server.http.request_headers import request_headers
from ksrv.server.rest.infer import json_bound
from ksrv.server.rest.responses import JSON, send_parts, server_timing, set_handler_headers
from ksrv.server.rest.streams import EVENT_STREAM, StreamedAnswer, send_stream
from ksrv.server.settings import ServerSettings

if TYPE_CHECKING:
    from ksrv.engine.engine import Engine


class GenerateResource:
    """POST /v2/models/{name}[/versions/{version}]/generate, and /generate_stream.

    Args:
        engine: Where requests run.
        settings: Limits.
        budget: The bytes in flight.
        access: Whether `Authorization` is kept from handlers.
        waiter: Waits for the response.
    """

    def __init__(
        self,
        engine: "Engine",
        settings: ServerSettings,
        budget: MemoryBudget,
        access: Access,
        *,
        waiter: ThreadWaiter,
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._budget = budget
        self._access = access
        self._waiter = waiter
        most = min(settings.limits.json, MOST_BYTES)
        self._body_limits = msgspec.structs.replace(settings.limits, json=most)

    def on_post(
        self, req: falcon.Request, resp: falcon.Response, name: str, version: str = ""
    ) -> None:
        """Answer with the whole text."""
        with Reservation(self._budget) as reservation:
            request = self._read(req, reservation, name, version)
            request.client = self._access.client_of(req.get_header("Authorization"))
            spec = request.target.spec
            reservation.close()  # from here on the queue counts the request
            client = self._waiter.client_of(req.env)
            response = self._waiter.infer(self._engine, request, client)
        body = render_generate(response, spec)
        set_handler_headers(resp, response.headers)
        resp.content_type = JSON
        if response.timings:
            resp.set_header("Server-Timing", server_timing(response))
        send_parts(resp, [body], len(body), self._budget, req.env)

    def on_post_stream(
        self, req: falcon.Request, resp: falcon.Response, name: str, version: str = ""
    ) -> None:
        """Answer with an event for each piece."""
        with Reservation(self._budget) as reservation:
            request = self._read(req, reservation, name, version)
            request.client = self._access.client_of(req.get_header("Authorization"))
            spec = request.target.spec
            reservation.close()

            def render(response: InferResponse) -> bytes:
                return render_generate(response, spec)

            answer = StreamedAnswer(
                self._engine,
                request,
                EVENT_STREAM,
                render,
                waiter=self._waiter,
                environ=req.env,
            )
        send_stream(resp, answer, EVENT_STREAM, req.env)

    def _read(
        self, req: falcon.Request, reservation: Reservation, name: str, version: str
    ) -> InferRequest:
        target = self._engine.find(
            name, version
        )  # an unknown model is told before the body is read
        body = read_body(
            req.env,
            self._body_limits,
            reservation,
            bound=json_bound(None, content_length(req.env), self._body_limits),
            decompress=self._settings.decompress_requests,
            on_read=req.context.mark_reading,
        )
        headers = request_headers(req.env, with_credentials=not self._access.needs_token)
        request = parse_generate(body, target.spec, self._settings.limits, headers=headers)
        request.target = target
        request.model_name = name
        request.model_version = version
        return request
