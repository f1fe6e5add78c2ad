"""TorchServe's gRPC services for inference and management.

Predictions take the way of KServe v2's calls through `ksrv.server.grpc`; management calls `Archives`. The `input` of a
prediction is one row whose parts are BYTES tensors, as on TorchServe's HTTP routes. The metadata of the call are the
headers of the request.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ksrv._native.grpc.grpc_call import CODE_OF, Call, MessageForm
from ksrv.dialects.torchserve.calls import ROUTES, TorchServeCall
from ksrv.dialects.torchserve.routes import errors
from ksrv.dialects.torchserve.routes import responses as answers
from ksrv.dialects.torchserve.routes.archives import Archives
from ksrv.errors import InvalidRequest, KsrvError
from ksrv.protocol.forms.multipart import MAX_PARTS
from ksrv.protocol.protobuf import message_class
from ksrv.request import InferRequest, InferResponse, Tensor
from ksrv.server.call import Find
from ksrv.server.grpc import limits as bounds
from ksrv.server.grpc.calls import (
    Behavior,
    Message,
    Source,
    earlier,
    needs_token,
    only_request,
    open_to_all,
    parsed,
    report_grpc,
    requests,
)
from ksrv.server.grpc.services import Method, Services

if TYPE_CHECKING:
    from ksrv.engine.engine import Engine

INFERENCE = "org.pytorch.serve.grpc.inference.InferenceAPIsService"
REQUEST = "org.pytorch.serve.grpc.inference.PredictionsRequest"
MANAGEMENT = "org.pytorch.serve.grpc.management.ManagementAPIsService"

SEQUENCE_ID = "ts_request_sequence_id"
"""The header in which a handler finds the sequence id of a request of StreamPredictions2."""


def torchserve_methods(services: Services, engine: "Engine") -> dict[str, Method]:
    """Return the methods of both services by path."""
    return PredictionCalls(services, engine).methods() | _management_methods(services, engine)


class PredictionCalls:
    """The inference service.

    Args:
        services: The parts shared with KServe's methods.
    """

    form: MessageForm | None = None

    def __init__(self, services: Services, engine: "Engine") -> None:
        self._services = services
        self._engine = engine
        self._archives = Archives(engine)

    def methods(self) -> dict[str, Method]:
        """Return the methods by path."""
        services = self._services
        pool = services.pool("ping", bounds.HEALTH_THREADS)
        ping = {"Ping": self._ping}
        found = {
            "Predictions": Method(
                needs_token(services.access), services.settings.limits, infer=self
            ),
            "StreamPredictions": services.stream(self._stream, one_message=True),
            "StreamPredictions2": services.stream(self._sequence),
        }
        return {
            **services.unary(INFERENCE, ping, pool, check=open_to_all, small=True),
            **{f"/{INFERENCE}/{name}": method for name, method in found.items()},
        }

    def _ping(self, request: Any, call: Call) -> Any:
        word = "Healthy" if self._engine.ready() else "Unhealthy"
        text = errors.render({"status": word}).decode().rstrip("\n")
        return message_class("org.pytorch.serve.grpc.inference.TorchServeHealthResponse")(
            health=text
        )

    # ---- one answer -------------------------------------------------------------------------

    def read(self, message: Message, call: Call, find: Find) -> InferRequest:
        """Read a request; see `ksrv.server.grpc.infer.InferForm`."""
        received = parsed(message_class(REQUEST), message)
        return self._request(received, call, {}, find)

    def render(self, response: InferResponse, request: InferRequest, call: Call) -> list[bytes]:
        """Write an answer; see `ksrv.server.grpc.infer.InferForm`."""
        return [self._message(prediction=answers.item_bytes(response))]

    def _request(
        self, received: Any, call: Call, headers: Mapping[str, str], find: Find
    ) -> InferRequest:
        name, version = received.model_name, received.model_version
        if not name:
            raise InvalidRequest("Parameter model_name is required.")
        if len(received.input) > MAX_PARTS:
            raise InvalidRequest(
                f"the request has more than {MAX_PARTS} parts; send several requests"
            )
        target = self._archives.find(name, version, find)
        call.note_model(target.spec.name, target.spec.version)
        metadata = call.metadata()
        if self._services.access.hides_tokens:
            metadata.pop("authorization", None)
        request = InferRequest(
            name,
            version,
            call.request_id,
            [Tensor(part, "BYTES", (1,), [value]) for part, value in received.input.items()],
            headers={key.title(): value for key, value in {**metadata, **headers}.items()},
            nbytes=received.ByteSize(),
            dialect=ROUTES,
            facts=TorchServeCall(content_types=dict.fromkeys(received.input, "")),
            client=self._services.access.client_of(call.authorization),
            target=target,
        )
        request.deadline_ns = earlier(request.deadline_ns, call.deadline_ns)
        return request

    def _message(self, **fields: Any) -> bytes:
        kind = message_class("org.pytorch.serve.grpc.inference.PredictionResponse")
        encoded: bytes = kind(**fields).SerializeToString()
        return encoded

    # ---- streams ----------------------------------------------------------------------------

    def _stream(self, source: Source, call: Call) -> Iterator[bytes]:
        """Answer one request with the chunks that its handler sends, and with its final answer."""
        if (received := only_request(message_class(REQUEST), source, call)) is not None:
            for item in self._items(received, call, {}):
                yield self._message(prediction=item)

    def _sequence(self, source: Source, call: Call) -> Iterator[bytes]:
        """StreamPredictions2: answer requests one after the other. A failed request does not end the stream."""
        for received in requests(message_class(REQUEST), source):
            sequence = {"sequence_id": received.sequence_id} if received.sequence_id else {}
            headers = {SEQUENCE_ID: received.sequence_id} if received.sequence_id else {}
            try:
                if not sequence:
                    raise InvalidRequest("Parameter sequenceId is required.")
                for item in self._items(received, call, headers):
                    yield self._message(prediction=item, **sequence)
            except Exception as error:  # noqa: BLE001  (becomes an answer of the stream)
                failure = report_grpc(error, call)
                status = {"code": CODE_OF[failure.grpc_code], "message": failure.message}
                yield self._message(status=status, **sequence)

    def _items(self, received: Any, call: Call, headers: Mapping[str, str]) -> Iterator[bytes]:
        """Run one request; yield the items that its handler sends, and the final answer."""
        read = functools.partial(self._request, received, call, headers)
        exchange = answers.Exchange(self._engine, read)
        if not call.add_callback(exchange.cancel):  # the call has ended already
            exchange.cancel()
        try:
            chunk = exchange.first()
            if chunk is None:
                yield answers.item_bytes(exchange.response())
            else:
                # Without the empty pieces, which only let an HTTP server check its client.
                yield from filter(None, exchange.pieces(chunk))
        finally:
            exchange.cancel()


def _management_methods(services: Services, engine: "Engine") -> dict[str, Method]:
    """Return the methods of the management service by path."""
    archives = Archives(engine)

    def described(request: Any) -> str:
        name, version = _name(request), request.model_version
        listed = archives.described(name, version, customized=request.customized)
        return errors.render(listed).decode()

    pool = services.pool("torchserve", bounds.CONTROL_THREADS)
    reads: dict[str, Callable[[Any], str]] = {
        "DescribeModel": described,
        "ListModels": lambda request: errors.render(archives.listed(_given(request))).decode(),
    }
    changes: dict[str, Callable[[Any], str]] = {
        "RegisterModel": lambda request: archives.register(_given(request)),
        "ScaleWorker": lambda request: archives.scale(
            _name(request), request.model_version, _given(request)
        ),
        "SetDefault": lambda request: archives.set_default(_name(request), request.model_version),
        "UnregisterModel": lambda request: archives.unregister(
            _name(request), request.model_version
        ),
    }
    return {
        **services.unary(MANAGEMENT, _behaviors(reads), pool, small=True),
        **services.unary(MANAGEMENT, _behaviors(changes), pool, small=True, control=True),
    }


def _behaviors(acts: Mapping[str, Callable[[Any], str]]) -> dict[str, Behavior]:
    return {name: _behavior(act) for name, act in acts.items()}


def _behavior(act: Callable[[Any], str]) -> Behavior:
    """Return the behaviour of a method whose answer is the text that `act` returns for the request."""

    def behavior(request: Any, call: Call) -> Any:
        try:
            text = act(request)
        except KsrvError as error:
            raise errors.translated(error) from None
        return message_class("org.pytorch.serve.grpc.management.ManagementResponse")(msg=text)

    return behavior


def _name(request: Any) -> str:
    if not request.model_name:
        raise InvalidRequest("Parameter model_name is required.")
    return str(request.model_name)


def _given(request: Any) -> dict[str, str]:
    """Return the fields of a message that are set, as the query of a URL would have them."""
    return {
        field.name: str(value).lower() if isinstance(value, bool) else str(value)
        for field, value in request.ListFields()
    }
