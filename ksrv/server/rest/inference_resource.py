"""The base class of the WSGI resources for inference: checks and reads the body, and runs the call in the engine."""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import falcon

from ksrv.model.spec import ModelSpec
from ksrv.protocol.error_texts import json_refusal, json_too_large
from ksrv.protocol.forms.uploads import is_upload
from ksrv.protocol.rest import HEADER_LENGTH
from ksrv.request import InferRequest
from ksrv.server.call import Find, run_infer
from ksrv.server.http.body import DIGITS, BodyReader, Bound, content_length, padding
from ksrv.server.http.byte_budget import Reservation
from ksrv.server.http.request_headers import request_headers
from ksrv.server.http.wsgi_calls import WsgiCall, find_before_body
from ksrv.server.shared.parts import ServerParts

_Call = TypeVar("_Call", bound=WsgiCall)


class InferenceResource:
    """The base of resources whose requests run on the engine.

    Args:
        parts: The parts that the front ends share.

    Attributes:
        most_json: The most bytes of a body if the route takes only JSON; None for the v2 routes, which also take
            binary tensors and uploads.
        subject: The name of such a body in the error: "a generate request".
    """

    most_json: int | None = None
    subject = "a request"

    def __init__(self, parts: ServerParts) -> None:
        self._engine = parts.engine
        self._settings = parts.settings
        self._bodies = BodyReader(parts.settings, parts.budget)
        self._access = parts.access
        self._shared_memory = parts.shared_memory
        self._limits = limits = parts.settings.limits
        self._json_route_bound: Bound | None = None
        if self.most_json is not None:
            refusal = json_refusal(self.subject, self.most_json, limits)
            self._json_route_bound = Bound(min(limits.json, self.most_json), refusal)

    def wanted_body(self, req: falcon.Request, name: str = "", version: str = "") -> int:
        """Return the most bytes that a request's body may have, judged by its head.

        Args:
            name: The model's, or "" if the body names it.

        Raises:
            KsrvError: The head shows that the request will be refused.
        """
        spec = find_before_body(self._engine, req.env, name, version).spec if name else None
        return self._bodies.wanted(req.env, self._bound(req, spec))

    def _bound(self, req: falcon.Request, spec: ModelSpec | None) -> Bound | None:
        """Return the limit on a body that is JSON as a whole; None if only its beginning or nothing of it is JSON.

        Args:
            spec: The model that the path names. Only overriding methods read it.

        Raises:
            BodyTooLarge: The announced JSON is too long by itself.
        """
        if self._json_route_bound is not None:  # the headers below have no meaning on such a route
            return self._json_route_bound
        header_length, length = req.get_header(HEADER_LENGTH), content_length(req.env)
        limit = self._limits.json
        if header_length is None:
            return None if is_upload(req.content_type) else Bound(limit, json_too_large)
        # The parser refuses a value later that is not a number, or is larger than the body.
        announced = int(header_length) if DIGITS.fullmatch(header_length) is not None else 0
        if announced > limit and (length is None or announced <= length):
            raise json_too_large(announced, limit)
        return None

    def _body(
        self, req: falcon.Request, reservation: Reservation, spec: ModelSpec | None = None
    ) -> memoryview:
        """Return the body. If the head already shows a fault, raise its error without reading the body."""
        header_length = None if self._json_route_bound else req.get_header(HEADER_LENGTH)
        bound = self._bound(req, spec)
        return self._bodies.read(req.env, reservation, bound=bound, offset=padding(header_length))

    def _headers(self, req: falcon.Request) -> dict[str, str]:
        """Return the headers that a handler sees."""
        return request_headers(req.env, with_credentials=not self._access.hides_tokens)

    def _read(
        self,
        req: falcon.Request,
        name: str,
        version: str,
        parse: Callable[[memoryview, ModelSpec], InferRequest],
        find: Find,
    ) -> InferRequest:
        """Return the request of a call; see `InferCall.read`."""
        target = find(name, version)  # an unknown model is refused before the body is read
        with self._bodies.reserve() as reservation:  # later the queue charges the request's bytes
            body = self._body(req, reservation, target.spec)
            if target.retired:  # the model was replaced while the body arrived
                target = find(name, version)
            request = parse(body, target.spec)
        request.target = target
        request.model_name = name
        request.model_version = version
        request.client = self._access.client_of(req.get_header("Authorization"))
        return request

    def _run(
        self,
        kind: Callable[..., _Call],
        req: falcon.Request,
        name: str,
        version: str,
        parse: Callable[[memoryview, ModelSpec], InferRequest],
    ) -> _Call:
        """Start a call and return it. A `WsgiCall` has ended then; a `StreamedCall` may still answer in parts.

        Args:
            kind: Makes the call: `WsgiCall`, or `StreamedCall` with its form.
            parse: Reads the body, for a model with the given spec.

        Raises:
            KsrvError: The call failed.
        """
        call = kind(req.env, partial(self._read, req, name, version, parse))
        run_infer(call, self._engine, waits=True)
        call.check()
        return call
