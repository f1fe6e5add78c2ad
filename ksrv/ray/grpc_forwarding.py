"""Calls that come by Ray's gRPC ingress, forwarded to the replica's own server.

Ray's gRPC proxy knows no service of itself: the cluster's `grpc_options` name `ksrv.ray:add_servicer`,
which registers KServe's. Ray then calls the replica's method of the call's name. Messages stay the bytes
that they are on the way.
"""

from collections.abc import AsyncIterator
from typing import Any

from ksrv.protocol.protobuf import INFERENCE, methods
from ksrv.ray.server_process import ServerProcess

_STREAM = "ModelStreamInfer"
_REQUEST_ID = "x-request-id"
_NOT_PASSED_ON = ("grpc-", ":")
_ABOUT_CONNECTION = frozenset({"content-type", "te", "user-agent"})
_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
]


class Message:
    """The bytes of an answer, in the form in which Ray asks for them."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def SerializeToString(self) -> bytes:  # noqa: N802
        """Return the bytes."""
        return self._data


class CallFailed(RuntimeError):
    """The server refused a call; Ray answers with the status that its context has."""


class GrpcForwarder:
    """Sends calls of Ray's gRPC ingress to a server on this node, and its answers back."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self._channel: Any = None

    async def unary(self, name: str, message: bytes, context: Any) -> Message:
        """Return the server's answer to a call, whose status, trailers and request id the context gets.

        A refusal is an empty answer: the client is sent no answer beside such a status, and of a method that
        raises Ray passes on no trailers, which say when to come again.

        Args:
            name: The call's name, such as "ModelInfer".

        Raises:
            CallFailed: The server cannot be called; the context says why.
        """
        from grpc.aio import AioRpcError

        call = self._open(context).unary_unary(f"/{INFERENCE}/{name}")
        answer = call(message, metadata=_metadata(context))
        try:
            data = await answer
        except AioRpcError as error:
            _set_status(context, error.code(), error.details())
            data = b""
        request_id = await _request_id(answer)
        trailers = [one for one in await answer.trailing_metadata() if one not in request_id]
        context.set_trailing_metadata([*request_id, *trailers])
        return Message(data)

    async def stream(
        self, name: str, messages: AsyncIterator[bytes], context: Any
    ) -> AsyncIterator[Message]:
        """Yield the server's answers to a stream of requests, whose request id the context gets.

        Raises:
            CallFailed: The server refused; the context says why.
        """
        from grpc.aio import AioRpcError

        call = self._open(context).stream_stream(f"/{INFERENCE}/{name}")
        answers = call(messages, metadata=_metadata(context))
        try:
            async for answer in answers:
                context.set_trailing_metadata(await _request_id(answers))
                yield Message(answer)
        except AioRpcError as error:
            raise _failed(context, error.code(), error.details()) from None
        finally:
            answers.cancel()  # nothing where it has ended

    def _open(self, context: Any) -> Any:
        """Return the channel, which the first call opens in the loop that all calls run in."""
        from grpc import StatusCode, aio

        if not self._server.grpc:
            why = "gRPC is off in the replicas; call their HTTP addresses"
            raise _failed(context, StatusCode.UNAVAILABLE, why)
        if self._server.tls_context() is not None:
            why = (
                "the replicas want TLS, which Ray's gRPC ingress has not; call their own addresses"
            )
            raise _failed(context, StatusCode.UNAVAILABLE, why)
        if self._channel is None:
            self._channel = aio.insecure_channel(self._server.grpc, options=_OPTIONS)
        return self._channel


def _metadata(context: Any) -> list[tuple[str, Any]]:
    kept = [
        (name, value)
        for name, value in context.invocation_metadata()
        if not name.startswith(_NOT_PASSED_ON) and name not in _ABOUT_CONNECTION
    ]
    # Without it a caller from elsewhere would have the rights of callers on this machine.
    return [*kept, ("x-forwarded-for", context.peer() or "unknown")]


async def _request_id(answer: Any) -> list[tuple[str, Any]]:
    """Return the request id among an answer's headers, which Ray passes on as trailers alone."""
    return [one for one in await answer.initial_metadata() if one[0] == _REQUEST_ID]


def _set_status(context: Any, code: Any, details: str | None) -> None:
    context.set_code(code)
    context.set_details(details or "")


def _failed(context: Any, code: Any, details: str | None) -> CallFailed:
    _set_status(context, code, details)
    return CallFailed(f"{code.name}: {details}")


def with_grpc_calls(replica: type[Any]) -> type[Any]:
    """Give a deployment's class a method for each call of KServe's service, which Ray calls by its name.

    Args:
        replica: The class, whose instances have a `grpc_forwarder`.
    """
    for name in methods(INFERENCE):
        setattr(replica, name, _stream_method(name) if name == _STREAM else _unary_method(name))
    return replica


def _unary_method(name: str) -> Any:
    async def call(self: Any, message: bytes, grpc_context: Any) -> Message:
        found: Message = await self.grpc_forwarder.unary(name, message, grpc_context)
        return found

    call.__name__ = name
    return call


def _stream_method(name: str) -> Any:
    async def call(
        self: Any, messages: AsyncIterator[bytes], grpc_context: Any
    ) -> AsyncIterator[Message]:
        async for answer in self.grpc_forwarder.stream(name, messages, grpc_context):
            yield answer

    call.__name__ = name
    return call


def add_servicer(servicer: Any, server: Any) -> None:
    """Register KServe's service with Ray's gRPC proxy: for its `grpc_servicer_functions`.

    Args:
        servicer: Ray's; its proxy answers every call itself.
    """
    import grpc

    handlers = {
        name: grpc.stream_stream_rpc_method_handler(servicer)
        if name == _STREAM
        else grpc.unary_unary_rpc_method_handler(servicer)
        for name in methods(INFERENCE)
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(INFERENCE, handlers),))
