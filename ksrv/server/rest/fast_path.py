"""KServe v2 inference without WSGI, and the answers that the HTTP server sends without Python.

An infer request in a usual form stays on an I/O thread. If the native code cannot read it completely, the thread calls
`FastPath` with an `Exchange`: the received request, and the connection that takes its answer.
Parser, renderer and the order of headers are the same as in `ksrv.server.rest.infer`. A test compares the bytes.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING

import orjson

from ksrv._native.infer.binary_response import binary_reply
from ksrv._native.queue.request_handle import NativeHandle
from ksrv._native.server.exchange import Exchange, HeadFields
from ksrv._native.server.model_endpoint import ModelEndpoint
from ksrv._native.server.server import PreparedAnswer
from ksrv.errors import HandlerFailed, InvalidRequest, KsrvError, Overloaded, RequestTooSlow
from ksrv.limits import Limits, limit_name, show_limit
from ksrv.model.spec import ModelSpec
from ksrv.protocol import grpc, rest
from ksrv.protocol.metadata import server_metadata
from ksrv.protocol.shared_memory import CallerMemory
from ksrv.request import InferRequest, InferResponse, RequestHandle, is_forwarded
from ksrv.server.call import Find, deliver, report, run_infer
from ksrv.server.http.answers import answer_fields, error_headers, status_line
from ksrv.server.http.received_body import ended_early
from ksrv.server.rest.health import server_health
from ksrv.server.shared.parts import ServerParts
from ksrv.server.shared.plain_route import ReadBody

if TYPE_CHECKING:
    from ksrv.engine.model import ModelVersion

OK = b"200 OK"

FAST_PATH_JSON = 32 * 1024
"""The most bytes of JSON that an I/O thread parses while it owns the sockets. Python parses longer JSON, because
another I/O thread takes over the sockets meanwhile."""


def header_lines(headers: list[tuple[str, str]], length: int) -> bytes:
    """Return header lines as Falcon under gunicorn writes them: lower case, the length last.

    Args:
        length: Bytes of the body.
    """
    lines = [f"{name.lower()}: {value}\r\n" for name, value in headers]
    return ("".join(lines) + f"content-length: {length}\r\n").encode("latin-1")


def render_json(
    document: object, status: int, headers: list[tuple[str, str]] | None = None
) -> PreparedAnswer:
    """Return a JSON answer in the form that the HTTP server takes."""
    body = orjson.dumps(document)
    fields = header_lines([("content-type", "application/json"), *(headers or [])], len(body))
    return status, status_line(status).encode("latin-1"), fields, body


def render_error(error: KsrvError, headers: Sequence[tuple[str, str]] = ()) -> PreparedAnswer:
    """Return an error's answer in the form that the HTTP server takes.

    Args:
        headers: Headers in addition to the error's headers.
    """
    fields = [*error_headers(error), *headers]
    return render_json({"error": error.message}, error.http_status, fields)


def render_unready(why: str) -> PreparedAnswer:
    """Return the readiness answer of a server that is not ready, in the form that the HTTP server takes.

    Args:
        why: Which models are not ready and why.
    """
    retry = [("retry-after", "1")]
    return render_json(server_health(why), HTTPStatus.SERVICE_UNAVAILABLE, retry)


def prepared_answers(
    limits: Limits, extensions: tuple[str, ...], *, to_pages: bool = False
) -> dict[str, PreparedAnswer]:
    """Return the answers that the HTTP server gives without Python.

    Args:
        extensions: The protocol's extensions that the server has.
        to_pages: Whether web pages of other origins call this server. Then every page may read the refusals of a
            full or slow server: they are sent before the origin is known, and reveal nothing else.
    """
    refused = [("access-control-allow-origin", "*")] if to_pages else []
    return {
        "live": render_json({"live": True}, HTTPStatus.OK),
        "ready": render_json(server_health(""), HTTPStatus.OK),
        "not_ready": render_unready("the models are being loaded"),
        "too_slow": render_error(
            RequestTooSlow(
                "the request did not arrive in time; it is given up and may be sent again"
            ),
            refused,
        ),
        "bytes_in_flight": render_error(
            Overloaded(
                "requests and answers in flight have reached the "
                + (
                    show_limit("in_flight", limits.in_flight)
                    if limits.in_flight
                    else limit_name("in_flight")
                )
            ),
            refused,
        ),
        "server": render_json(server_metadata(extensions), HTTPStatus.OK),
        "failed": render_error(HandlerFailed("the server failed; see its log"), refused),
        "not_tls": render_error(
            InvalidRequest("the request came without TLS, which this server expects; use https")
        ),
    }


def late_answer(model: "ModelVersion") -> tuple[bytes, bytes, bytes] | None:
    """Return the answer past the deadline in the parts that `ModelEndpoint` takes; None if the name is too long.

    The native code formats the texts with snprintf, so the milliseconds become %lld.
    """
    mark = 10**17  # a number of milliseconds that is not in the text otherwise
    waiting = model.deadline_exceeded(mark, running=False)
    running = model.deadline_exceeded(mark, running=True)
    if len(running.message) > 1000:  # LATE_BYTES of the native core, with a reserve
        return None
    fields = render_error(waiting)[2]

    def printf_format(error: KsrvError) -> bytes:
        return error.message.replace("%", "%%").replace(str(mark), "%lld").encode()

    head = fields[: fields.rindex(b"content-length:")]
    return head, printf_format(waiting), printf_format(running)


def endpoint_for(model: "ModelVersion", route: "FastPath", limits: Limits) -> ModelEndpoint | None:
    """Return the native endpoint of a model's fast-path requests, or None if the model needs Python for each request.

    Args:
        route: Serves in Python the requests that the endpoint leaves.
    """
    late = late_answer(model)
    spec = model.spec
    needs_python = model.limits_rate or model.cache is not None or bool(spec.concurrency)
    needs_python = needs_python or spec.sequences is not None or spec.accepts_any_inputs
    needs_python = needs_python or spec.has_optional_inputs
    if needs_python or late is None:
        return None
    try:
        return ModelEndpoint(
            model.queue,
            model.spec,
            timeout_ns=model.timeout_ns,
            route=route,
            runs=model.inline_runs,
            late=late,
            json_limit=min(limits.json, FAST_PATH_JSON),
            hides_token=route.hides_token,
            depth=limits.json_depth,
            nan_literals=route.nan_literals,
            images={name: images.fast_images() for name, images in model.images.items()},
            # Images are decoded when requests join the batch, and its longest row is not known before the last.
            padding=None if model.images else model.padding.of_one_length(),
            sampled=model.tap.sampled if model.tap else (0.0, 0),
        )
    except ValueError:  # an input has a form that only Python reads
        return None


def without_credentials(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Return the headers that a handler may see if the server checks tokens."""
    return {name: headers[name] for name in headers if name != "authorization"}


class FastPath:
    """Runs the requests that the HTTP server hands to Python. The server calls an instance with each `Exchange`.

    Args:
        parts: The parts that the front ends share.

    Attributes:
        access: Checks the rights of callers.
        limits: Bounds on requests.
        nan_literals: Whether JSON answers have NaN as a literal.
        hides_token: Whether handlers must not see the header with the token.
    """

    def __init__(self, parts: ServerParts) -> None:
        self._engine = parts.engine
        self._plain_routes = tuple(parts.plain_routes.values())
        self.limits = parts.settings.limits
        self.access = parts.access
        self.hides_token = parts.access.hides_tokens
        self.nan_literals = parts.settings.nan_literals
        self._shared_memory = parts.shared_memory

    def admits(self, head: bytes) -> bool:
        """Tell whether the sender of a head may send its body. If not, the app answers with the reason.

        Args:
            head: The bytes of the head.
        """
        try:
            self.access.check(HeadFields(head).get("authorization"))
        except KsrvError:
            return False
        return True

    def __call__(self, exchange: Exchange) -> None:
        """Start a request. The thread that ends the request in the engine sends the answer."""
        run_infer(FastCall(self, exchange), self._engine, waits=False)

    def memory_of(self, exchange: Exchange, headers: Mapping[str, str]) -> CallerMemory | None:
        """Return the shared memory that a request may name; None if shared memory is off."""
        if self._shared_memory is None:
            return None
        peer, user = exchange.client_address(), exchange.client_user()

        def control_user() -> tuple[int, int] | None:
            self.access.check_control(
                headers.get("authorization"),
                peer=peer,
                forwarded=is_forwarded(headers),
                origin=headers.get("origin"),
                host=headers.get("host", ""),
            )
            return user

        return self._shared_memory.of_caller(control_user)

    def plain_paths(self, spec: ModelSpec) -> int:
        """Return a bit for each path of plain JSON that serves a model."""
        return sum(route.serves(spec) << bit for bit, route in enumerate(self._plain_routes))

    def fast_request(
        self, spec: ModelSpec, body: memoryview, header_length: str, head: bytes, plain: int
    ) -> ReadBody:
        """Return the Python request for a request that the HTTP server has queued without Python.

        Args:
            header_length: How many bytes of the body are JSON.
            head: The bytes of the head.
            plain: See `Exchange.plain`.
        """
        return self.read(plain, body, header_length, spec, self.headers_of(head), None)

    def read(
        self,
        plain: int,
        body: memoryview,
        header_length: str | None,
        spec: ModelSpec,
        headers: Mapping[str, str],
        memory: CallerMemory | None,
    ) -> ReadBody:
        """Return the request of a body.

        Args:
            plain: The number of the plain JSON path, from 1; 0 for KServe v2.
        """
        if plain:
            return self._plain_routes[plain - 1].read(body, spec, self.limits, headers)
        request = rest.parse_infer(
            body, header_length, spec, self.limits, headers=headers, memory=memory
        )
        literals = self.nan_literals
        render = partial(rest.render_infer, request=request, nan_literals=literals, memory=memory)
        return request, render

    def fast_message(
        self, parse: grpc.Parse, spec: ModelSpec, message: memoryview, head: bytes
    ) -> InferRequest:
        """Return the Python request for a call that the gRPC server has queued without Python.

        Args:
            parse: Reads the message; see `ksrv.server.grpc.infer.InferForm`.
            head: The call's metadata, as the bytes of a head.
        """
        headers = self.headers_of(head)
        return parse(message, lambda name, version: spec, self.limits, metadata=headers)

    def headers_of(self, head: bytes) -> Mapping[str, str]:
        """Return the headers of a request that a native server has queued without Python.

        Args:
            head: The bytes of the head.
        """
        headers: Mapping[str, str] = HeadFields(head)
        return without_credentials(headers) if self.hides_token else headers

    def deliver(self, exchange: Exchange, read: ReadBody, response: InferResponse) -> None:
        """Send the response to a request that the HTTP server has queued without Python."""
        deliver(FastCall(self, exchange, read), response)

    def refuse(self, exchange: Exchange, error: Exception) -> None:
        """Send the error of a request that the HTTP server has queued without Python."""
        FastCall(self, exchange).refuse(error)


class FastCall:
    """An `InferCall` that the HTTP server received.

    Args:
        path: The route.
        exchange: The message, which takes the answer.
        read: The request and the function that renders its answer, if the body was read already.
    """

    __slots__ = ("_exchange", "_memory", "_path", "_read")
    blocks = may_run = False

    def __init__(self, path: FastPath, exchange: Exchange, read: ReadBody | None = None) -> None:
        self._path = path
        self._exchange = exchange
        self._read = read
        self._memory: CallerMemory | None = None

    def authorize(self) -> None:
        """See `InferCall.authorize`."""
        exchange = self._exchange
        if len(exchange.body) < exchange.announced:
            raise ended_early(len(exchange.body), exchange.announced)
        if self._path.access.needs_token:
            self._path.access.check(exchange.headers.get("authorization"))
            exchange.remember_caller()  # later messages with this token need no check

    def read(self, find: Find) -> InferRequest:
        """See `InferCall.read`."""
        exchange, path = self._exchange, self._path
        headers = exchange.headers
        self._memory = path.memory_of(exchange, headers)
        target = find(exchange.model, exchange.version)
        self._read = request, _ = path.read(
            exchange.plain,
            exchange.body,
            exchange.header_length,
            target.spec,
            without_credentials(headers) if path.hides_token else headers,
            self._memory,
        )
        request.model_name = exchange.model
        request.model_version = exchange.version
        request.target = target
        request.sampled = exchange.sampled
        request.client = path.access.client_of(headers.get("authorization"))
        exchange.give_back_bytes()
        return request

    def watch(self, handle: RequestHandle) -> None:
        """See `InferCall.watch`."""
        if isinstance(handle, NativeHandle):
            self._exchange.watch(handle)

    def send(self, response: InferResponse) -> None:
        """See `InferCall.send`."""
        exchange = self._exchange
        assert self._read is not None, "a request that has a response was read"
        request, render = self._read
        # `binary_reply` writes only the common form of KServe v2, and no shared memory.
        general = exchange.plain or self._memory is not None
        reply = None if general else binary_reply(response, request)
        if reply is not None:
            exchange.answer(200, OK, *reply)
            return
        rendered = render(response)
        fields = header_lines(answer_fields(response, rendered), rendered.content_length)
        exchange.answer(HTTPStatus.OK, OK, fields, rendered.parts)

    def refuse(self, error: Exception) -> None:
        """See `InferCall.refuse`."""
        exchange = self._exchange
        fields = {"request_id": exchange.request_id, "model": exchange.model}
        target = exchange.head.split(b" ", 2)[1].decode("ascii", "backslashreplace")
        failure = report(error, "http", f"POST {target}", fields)
        status, line, fields_sent, body = render_error(failure)
        exchange.answer(status, line, fields_sent, [body])
