"""The body of a message that the native HTTP server has received, and the errors for incomplete or faulty bodies."""

from ksrv._native.memory import buffer_pool
from ksrv._native.server.app_message import AppMessage
from ksrv.errors import BodyTooLarge, InvalidRequest, NotReady, quote
from ksrv.limits import Limits, show_limit

MESSAGE = "ksrv.message"
"""The key of the `AppMessage` in the WSGI environment. Only the native HTTP server sets it."""

_FAULTS = {
    "size": "a chunk's size is not a line of hexadecimal digits",
    "size bits": "a chunk's size has more than 64 bits",
    "end": "a chunk is not followed by CR LF",
    "trailer": "what follows the last chunk is not a trailer section",
}


def ended_early(received: int, announced: int) -> InvalidRequest:
    """Return the error for a body that is shorter than its Content-Length.

    Args:
        received: The bytes that came.
    """
    return InvalidRequest(
        f"the body ended after {received} of the {announced} bytes that Content-Length announced"
    )


def body_too_large(size: int, limit: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"the body holds {size} bytes or more, above the {show_limit('body', limit)}"
    )


def _malformed_chunks(fault: str, found: bytes) -> InvalidRequest:
    shown = f", got {quote(found.decode('latin-1'))}" if found else ""
    return InvalidRequest(f"the chunked body is malformed: {_FAULTS[fault]}{shown}")


def received_body(message: AppMessage, most: int, limits: Limits | None = None) -> memoryview:
    """Return the body of a message that the native HTTP server has received.

    `AppMessage.state` is "none" (the message has no body), "whole", "unread" (incomplete, and no more was requested),
    "cut short" (the client closed before the end), "too long" (chunks exceed the requested size), or "malformed".

    Args:
        most: The most bytes of a chunked body.

    Raises:
        NotReady: The app did not ask the server to receive the body, because it meant to refuse the request, and
            now wants the body.
        BodyTooLarge: It is longer than a limit.
        InvalidRequest: It ended early, or its chunks are malformed.
    """
    state = message.state
    limits = limits or Limits()
    if state == "whole":
        return message.body
    if state == "none":
        return memoryview(buffer_pool.lease(0))
    if state == "unread" and not message.asked:
        raise NotReady(
            "the request was to be refused before its body came, and the model has changed meanwhile; send it again"
        )
    if message.fault == "count":
        raise InvalidRequest(
            f"the body has more chunks than the {show_limit('chunks', limits.chunks)}"
        )
    if message.fault == "length" or message.received > limits.body:
        raise BodyTooLarge(
            f"the body's chunks announce {message.received} bytes, above the "
            f"{show_limit('body', limits.body)}"
        )
    if message.fault != "none":
        raise _malformed_chunks(message.fault, message.fault_at)
    if state == "too long":
        raise body_too_large(message.received, most)
    if message.announced:  # "cut short"
        raise ended_early(message.received, message.announced)
    raise InvalidRequest(
        f"the chunked body ended behind {message.received} bytes, before its last chunk"
    )
