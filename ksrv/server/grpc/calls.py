"""One gRPC call, seen by ksrv: its metadata, its peer, its deadline, and how it is refused.

`grpc` is imported inside the functions, because it must not be loaded before gunicorn has forked.
"""

import logging
import math
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

from ksrv._native.grpc.grpc_server import CODE_OF, Call
from ksrv.errors import HandlerFailed, InvalidRequest, KsrvError, Overloaded
from ksrv.observe.traffic import count_error
from ksrv.server.credentials import Access

log = logging.getLogger(__name__)

SECOND_NS = 1_000_000_000
FOREVER_S = 1e9
"""A deadline further away than this is none: grpc tells "no deadline" as a distant one."""

Context = Any
"""A `grpc.ServicerContext`."""

Behavior = Callable[[Any, Context], Any]
Check = Callable[[Context], None]


def metadata_of(context: Context) -> dict[str, str]:
    """Return a call's text metadata, names in lower case; binary entries are left out."""
    if isinstance(context, Call):
        return context.metadata()
    return {
        entry.key: entry.value
        for entry in context.invocation_metadata()
        if isinstance(entry.value, str)
    }


def peer_of(context: Context) -> str:
    """Return the caller's IP address, or "" for a unix socket."""
    if isinstance(context, Call):
        return context.peer_address()
    kind, _, rest = str(context.peer()).partition(":")
    if kind == "ipv4":
        return rest.rpartition(":")[0]
    if kind == "ipv6":
        return urllib.parse.unquote(rest).rpartition(":")[0].strip("[]")
    return ""


def deadline_of(context: Context) -> int | None:
    """Return the `time.monotonic_ns` of a call's deadline, or None."""
    if isinstance(context, Call):
        return context.deadline_ns
    left = context.time_remaining()
    if left is None or not math.isfinite(left) or left > FOREVER_S:
        return None
    return time.monotonic_ns() + int(left * SECOND_NS)


def earlier(first: int | None, second: int | None) -> int | None:
    """Return the earlier of two deadlines, of which each may be missing."""
    if first is None or second is None:
        return second if first is None else first
    return min(first, second)


def open_to_all(context: Context) -> None:
    """The check of health calls: everybody may ask."""


def needs_token(authorizer: Access) -> Check:
    """Return the check of ordinary calls."""

    def check(context: Context) -> None:
        if authorizer.needs_token:
            authorizer.check(metadata_of(context).get("authorization"))

    return check


def needs_control(authorizer: Access) -> Check:
    """Return the check of calls that change the repository."""

    def check(context: Context) -> None:
        metadata = metadata_of(context)
        authorization = metadata.get("authorization")
        authorizer.check_control(
            authorization,
            peer=peer_of(context),
            forwarded="x-forwarded-for" in metadata or "forwarded" in metadata,
            origin=metadata.get("origin"),
        )
        authorizer.check(authorization)

    return check


def failure_of(error: BaseException) -> KsrvError:
    """Return the error that the client is told; an unforeseen exception goes into the log."""
    if isinstance(error, KsrvError):
        return error
    log.error("a gRPC call failed", exc_info=error)
    return HandlerFailed("the server failed to answer this call; its log says why")


def set_status(context: Context, error: KsrvError) -> None:
    """Give a call the status that belongs to an error, and count it: once for each call."""
    import grpc

    count_error(error)
    context.set_code(getattr(grpc.StatusCode, error.grpc_code))
    context.set_details(error.message)
    if trailers := error_metadata(error):
        context.set_trailing_metadata(tuple(trailers))


def error_metadata(error: KsrvError) -> list[tuple[str, str]]:
    """Return the metadata that goes with an error."""
    metadata = trailing(getattr(error, "headers", None) or {})
    if error.retry_after is not None:
        metadata.append(("retry-after", str(error.retry_after)))
    return metadata


def refuse(call: Call, error: KsrvError) -> None:
    """End a call of the native server with an error, and count it."""
    count_error(error)
    call.finish(CODE_OF[error.grpc_code], error.message, error_metadata(error))


def trailing(headers: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return a handler's response headers as metadata.

    Names are lower case there, and names or values that gRPC cannot carry are left out with a
    warning.
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
    if not key or key.startswith("grpc-") or key.endswith("-bin"):
        return False
    return key.isascii() and key.replace("-", "").replace("_", "").replace(".", "").isalnum()


def abort(context: Context, error: KsrvError) -> NoReturn:
    """End a call with an error."""
    import grpc

    set_status(context, error)
    context.abort(getattr(grpc.StatusCode, error.grpc_code), error.message)
    raise AssertionError("abort returned")


def parsed(kind: type[Any], message: bytes | memoryview) -> Any:
    """Return the request that a call received.

    grpcio's own deserialising would answer malformed bytes with INTERNAL.

    Raises:
        InvalidRequest: The bytes are no such message.
    """
    from google.protobuf.message import DecodeError

    try:
        return kind.FromString(bytes(message))
    except DecodeError as error:
        raise InvalidRequest(f"the request is not a {kind.DESCRIPTOR.name}: {error}") from error


def answering(
    behavior: Behavior, kind: type[Any], answer: type[Any]
) -> Callable[[bytes | memoryview, Context], bytes]:
    """Return a unary call as a function of bytes.

    Args:
        behavior: Takes the request and the context, returns the answer or raises.
        kind: The request's class.
        answer: The answer's class.
    """

    def call(message: bytes | memoryview, context: Context) -> bytes:
        made: bytes = answer.SerializeToString(behavior(parsed(kind, message), context))
        return made

    return call


def streaming(
    behavior: Callable[[Any, Context], Iterator[Any]],
    check: Check,
    permits: Callable[[Context], threading.Semaphore],
) -> Callable[[Any, Context], Iterator[Any]]:
    """Return a call with a stream of answers that is checked, counted, and fails with a status.

    Args:
        behavior: Takes the requests and the context, yields answers or raises.
        check: Who may call; asked before a permit is taken or a message is received.
        permits: Says of which permits one is taken while the stream is open.
    """
    import grpc

    def call(requests: Any, context: Context) -> Iterator[Any]:
        taken = None
        try:
            check(context)
            among = permits(context)
            if not among.acquire(blocking=False):
                raise Overloaded(
                    "as many streams are open as this server serves at a time", "streams"
                )
            taken = among
            yield from behavior(requests, context)
            return
        except grpc.RpcError:
            raise  # grpcio's own word that the call is over
        except Exception as error:  # noqa: BLE001 - the boundary to grpcio, which hides them
            failure = failure_of(error)
        finally:
            if taken is not None:
                taken.release()
        abort(context, failure)

    return call
