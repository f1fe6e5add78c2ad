"""The functions that services use for a gRPC call: checks of the caller, errors, metadata, and messages of protobuf.

A call is a `Call` of the native server, or a `GrpcioCall`, which has the same methods.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

from ksrv._native.grpc.grpc_call import CODE_OF, Call, retry_details
from ksrv.errors import RESERVED_HEADERS, InvalidRequest, KsrvError, Unauthenticated
from ksrv.protocol.protobuf import methods
from ksrv.request import is_forwarded
from ksrv.server.call import report
from ksrv.server.credentials import Access

log = logging.getLogger(__name__)

Message: TypeAlias = bytes | memoryview

Incoming: TypeAlias = Callable[[], AbstractContextManager[Message]]
"""Opens a received message. Entering the context inflates it and may raise; leaving it returns bytes to the budget."""

Source: TypeAlias = Callable[[Callable[[], bool], Callable[[KsrvError], None]], Iterator[Incoming]]
"""Returns the messages of a stream.

The arguments are a function that returns whether the stream is idle (no request of it is running), and a function that
gets the error if no message arrived in time.
"""

Behavior = Callable[[Any, Call], Any]
"""Takes the request message and the call; returns the answer's message, or raises."""
Check = Callable[[Call], None]
"""Raises if the caller may not make the call."""


def earlier(first: int | None, second: int | None) -> int | None:
    """Return the earlier of two deadlines; None means no deadline."""
    if first is None or second is None:
        return second if first is None else first
    return min(first, second)


def open_to_all(call: Call) -> None:
    """The check of health calls: every caller is accepted."""


def _refuse_repeated(call: Call) -> None:
    """Refuse a call with several `authorization` entries."""
    if call.repeats_authorization:
        raise Unauthenticated("the call's metadata has more than one 'authorization'; send one")


def needs_token(authorizer: Access) -> Check:
    """Return the check of ordinary calls."""

    def check(call: Call) -> None:
        if authorizer.needs_token:
            _refuse_repeated(call)
            authorizer.check(call.authorization)

    return check


def needs_control(authorizer: Access) -> Check:
    """Return the check of calls that change the repository."""

    def check(call: Call) -> None:
        _refuse_repeated(call)
        metadata = call.metadata()
        authorization = metadata.get("authorization")
        authorizer.check_control(
            authorization,
            peer=call.peer_address(),
            forwarded=is_forwarded(metadata),
            origin=metadata.get("origin"),
            host=call.host,
        )
        authorizer.check(authorization)

    return check


def control_user(authorizer: Access, call: Call) -> tuple[int, int] | None:
    """Return the user and group at the other end of the unix socket of a control call, or None.

    Raises:
        KsrvError: The caller may make no control calls.
    """
    needs_control(authorizer)(call)
    return call.client_user()


def error_metadata(error: KsrvError) -> list[tuple[str, str | bytes]]:
    """Return the metadata that is sent with an error."""
    metadata: list[tuple[str, str | bytes]] = [*trailing(getattr(error, "headers", None) or {})]
    if error.retry_after is not None:
        details = retry_details(error.grpc_code, error.message, error.retry_after)
        metadata.append(("retry-after", str(error.retry_after)))
        metadata.append(("grpc-status-details-bin", details))
    return metadata


def refuse(call: Call, error: Exception) -> None:
    """End a call of the native server with an error; see `report_grpc`."""
    failure = report_grpc(error, call)
    call.finish(CODE_OF[failure.grpc_code], failure.message, error_metadata(failure))


def report_grpc(error: Exception, call: Call) -> KsrvError:
    """Log and count a failure; return the error that the client gets."""
    return report(error, "grpc", f"gRPC {call.path}", {"request_id": call.request_id})


def trailing(headers: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return a handler's response headers as metadata.

    Names become lower case. Names or values that gRPC cannot carry are left out with a warning.
    """
    kept = []
    for name, value in headers.items():
        key = name.lower()
        if _is_key(key) and value.isascii() and value.isprintable():
            kept.append((key, value))
        else:
            log.warning("response header %a cannot travel as gRPC metadata", name[:64])
    return kept


def _is_key(key: str) -> bool:
    if not key or key in RESERVED_HEADERS or key.startswith("grpc-") or key.endswith("-bin"):
        return False
    return key.isascii() and key.replace("-", "").replace("_", "").replace(".", "").isalnum()


def parsed(kind: type[Any], message: Message) -> Any:
    """Return the message of a class from its bytes.

    grpcio is not left to do this, because it would answer malformed bytes with INTERNAL.

    Raises:
        InvalidRequest: The bytes are not a message of the class.
    """
    from google.protobuf.message import DecodeError

    try:
        return kind.FromString(bytes(message))
    except DecodeError as error:
        raise InvalidRequest(f"the request is not a {kind.DESCRIPTOR.name}: {error}") from error


def requests(kind: type[Any], source: Source) -> Iterator[Any]:
    """Yield the requests of a stream that answers each request before it takes the next.

    Raises:
        KsrvError: A message is malformed, or none arrived in time.
    """

    def fail(error: KsrvError) -> None:
        raise error

    for incoming in source(lambda: True, fail):
        with incoming() as message:
            request = parsed(kind, message)
        yield request


def only_request(kind: type[Any], source: Source, call: Call) -> Any:
    """Return the only request of a call that streams answers; None if the call ended before the request arrived.

    Raises:
        InvalidRequest: The client sent no request.
    """
    request = next(requests(kind, source), None)
    if request is None and call.is_active():
        raise InvalidRequest("the call requires exactly one request message")
    return request


def answering(behavior: Behavior, service: str, name: str) -> Callable[[Message, Call], bytes]:
    """Return a unary call as a function of bytes.

    Args:
        behavior: Takes the request and the call, returns the answer or raises.
        service: The full name of the call's service.
        name: The call's name. Its messages are looked up by the name at the first call, so that workers start without
            importing protobuf.
    """

    def made(message: Message, call: Call) -> bytes:
        kind, answer = methods(service)[name]
        encoded: bytes = answer.SerializeToString(behavior(parsed(kind, message), call))
        return encoded

    return made
