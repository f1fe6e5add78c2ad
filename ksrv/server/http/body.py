"""Reading a request's body into one block of memory, within the limits.

If the native HTTP server runs the app, it has received the body already. Under any other WSGI server, the body is read
from `wsgi.input`. The announced length is checked before the first byte is read, but only bytes that arrive are
charged to the memory budget.
"""

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ksrv._native.memory.memory_budget import MemoryBudget
from ksrv._native.server.app_message import AppMessage
from ksrv.errors import BodyTooLarge, InvalidRequest, KsrvError, quote
from ksrv.limits import show_limit
from ksrv.server.http.byte_budget import Reservation
from ksrv.server.http.compression import COMPRESSED_STEP, content_encoding, inflated, steps
from ksrv.server.http.received_body import MESSAGE, body_too_large, ended_early, received_body
from ksrv.server.settings import ServerSettings

ALIGNMENT = 64
"""Bytes; the first tensor of a body begins at a multiple of them."""

COMPRESSION_OVERHEAD = 1024
"""Bytes that headers and trailers may add to a body that does not become shorter by compression."""

DIGITS = re.compile(r"[0-9]{1,18}")

Environ = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Bound:
    """A route's limit on bodies, which is lower than the limit for all routes.

    Attributes:
        nbytes: The limit.
        refusal: Makes the error from two numbers: the length, announced or received until now, and the limit.
    """

    nbytes: int
    refusal: Callable[[int, int], KsrvError]


def padding(header_length: str | None) -> int:
    """Return where in its block a body must begin so that its first tensor is aligned.

    Args:
        header_length: The raw `Inference-Header-Content-Length`, or None. The parser refuses a
            value later that is not a number.
    """
    if header_length is None or DIGITS.fullmatch(header_length) is None:
        return 0
    return -int(header_length) % ALIGNMENT


def one_block(
    pieces: Iterator[bytes], bound: Bound, reservation: Reservation, offset: int = 0
) -> memoryview:
    """Join the pieces of a body in one block of memory. Each piece is charged to the reservation when it arrives.

    Args:
        offset: See `padding`.

    Raises:
        KsrvError: The pieces exceed the bound.
    """
    block = bytearray(offset)
    for piece in pieces:
        size = len(block) - offset + len(piece)
        if size > bound.nbytes:
            raise bound.refusal(size, bound.nbytes)
        reservation.grow(len(piece))
        block += piece
    return memoryview(block)[offset:]


def content_length(environ: Environ) -> int | None:
    """Return the announced length of a body, or None.

    Raises:
        InvalidRequest: It is not a number.
    """
    text = environ.get("CONTENT_LENGTH")
    if not text:
        return None
    if DIGITS.fullmatch(text) is None:
        raise InvalidRequest(f"Content-Length must be at most 18 digits, got {quote(text)}")
    return int(text)


def _pieces(stream: Any, length: int | None, most: int) -> Iterator[bytes]:
    """Yield the raw body: up to `length` bytes, or up to the end of a chunked body.

    A chunked body is read up to one byte above `most`: the caller refuses the body when it sees that byte.
    """
    received = 0
    while length is None or received < length:
        try:
            left = (most + 1 if length is None else length) - received
            piece = stream.read(min(COMPRESSED_STEP, left))
        except Exception as error:  # each WSGI server raises other exceptions for a broken body
            raise InvalidRequest(f"the body cannot be read: {error}") from error
        if not piece:
            if length is not None:
                raise ended_early(received, length)
            return
        received += len(piece)
        yield piece


@dataclass(frozen=True, slots=True)
class ExpectedBody:
    """A head's announcements about a body that a route reads.

    Attributes:
        encoding: How it is compressed; "identity" if it is not.
        length: The announced length; None for a body in chunks.
        bound: The limit on its content after inflation.
        most: The limit on its bytes as they are sent.
    """

    encoding: str
    length: int | None
    bound: Bound
    most: int


class BodyReader:
    """Reads the bodies of requests.

    Args:
        settings: Bounds on bodies, and whether compressed bodies are accepted.
        budget: The bytes that requests may hold together.
    """

    def __init__(self, settings: ServerSettings, budget: MemoryBudget) -> None:
        self._limits = settings.limits
        self._decompress = settings.decompress_requests
        self._budget = budget

    def reserve(self) -> Reservation:
        """Return a reservation for the bytes of one request."""
        return Reservation(self._budget)

    def wanted(self, environ: Environ, bound: Bound | None = None) -> int:
        """Return the most bytes that a body may have on the wire, judged by the head of its request.

        Args:
            bound: The route's own limit.

        Raises:
            KsrvError: The head already shows a fault for which `read` would refuse the body.
        """
        with self.reserve() as reservation:
            return self._expected(environ, reservation, bound).most

    def read(
        self,
        environ: Environ,
        reservation: Reservation,
        *,
        bound: Bound | None = None,
        offset: int = 0,
    ) -> memoryview:
        """Read a request's whole body into one block.

        Args:
            reservation: Takes the bytes out of the memory budget.
            bound: The route's own limit.
            offset: How far into its block the body begins; see `padding`.

        Returns:
            A writable view of exactly the body's bytes; the block lives as long as the view.

        Raises:
            BodyTooLarge: The body is, or inflates to, more than the limits allow.
            InvalidRequest: The body ended early, came in too many chunks or is corrupt, or its length is not a number.
            Overloaded: The bytes in flight are at their bound.
            UnsupportedEncoding: The body's `Content-Encoding` is not accepted.
        """
        head = self._expected(environ, reservation, bound)
        encoding, length = head.encoding, head.length
        message = environ.get(MESSAGE)
        if message is not None:
            return self._received(message, reservation, head, offset)
        if length is None and "HTTP_TRANSFER_ENCODING" not in environ:
            length = 0
        most = head.bound.nbytes if encoding == "identity" else sys.maxsize
        pieces = _pieces(environ["wsgi.input"], length, most)
        if encoding != "identity":
            pieces = inflated(pieces, encoding, self._limits)
        return one_block(pieces, head.bound, reservation, offset)

    def _expected(
        self, environ: Environ, reservation: Reservation, bound: Bound | None
    ) -> ExpectedBody:
        """Check the announcements of a head, without reading the body and without charging the budget."""
        limits = self._limits
        encoding = content_encoding(environ.get("HTTP_CONTENT_ENCODING", ""), self._decompress)
        length = content_length(environ)
        if length is not None and length > limits.body:
            raise BodyTooLarge(
                f"the body has {length} bytes, above the {show_limit('body', limits.body)}"
            )
        if bound is None or bound.nbytes > limits.body:
            bound = Bound(limits.body, body_too_large)
        if encoding == "identity" and length is not None and length > bound.nbytes:
            raise bound.refusal(length, bound.nbytes)
        if length is not None:
            reservation.expect(length)
        most = bound.nbytes
        if encoding != "identity":
            # deflate makes data that does not compress longer by less than 0.1 %.
            most = min(limits.body, most + most // 1000 + COMPRESSION_OVERHEAD)
        return ExpectedBody(encoding, length, bound, most)

    def _received(
        self, message: AppMessage, reservation: Reservation, head: ExpectedBody, offset: int
    ) -> memoryview:
        """Return the body of a received message, decompressed if it has a content coding."""
        bound, most, limits = head.bound, head.most, self._limits
        received = max(message.announced, message.received)
        # Above `limits.body`, `received_body` raises the error that all routes share.
        if most < received <= limits.body and message.state in ("unread", "too long"):
            raise bound.refusal(received, bound.nbytes)
        view = received_body(message, most, limits)
        reservation.adopt(message.take_counted())
        if head.encoding == "identity":
            if len(view) > most:
                raise bound.refusal(len(view), most)
            return view
        return one_block(inflated(steps(view), head.encoding, limits), bound, reservation, offset)
