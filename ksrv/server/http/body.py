"""Reading a request's body into one block of memory, within the limits.

The native HTTP server has received the body already. Under another worker of gunicorn, or another server, a body of known length is read in steps of 1 MiB from the WSGI stream into a block
of the buffer pool, which begins so that the first tensor behind the JSON lies on a 64-byte border; a chunked
or compressed body is gathered in one growing block. The announced length is checked before the first byte
is read, but only bytes that come are taken from the budget of those in flight.

Framing errors belong to the server in front: while `reading` is set nobody may turn an exception
into an answer, or the client would see two.
"""

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ksrv._native.memory import buffer_pool
from ksrv._native.memory.memory_budget import SMALL_REQUEST
from ksrv._native.server.app_message import AppMessage
from ksrv.errors import BodyTooLarge, InvalidRequest, KsrvError, quote
from ksrv.limits import MIB, Limits, show_limit
from ksrv.server.http.byte_budget import Reservation
from ksrv.server.http.compression import COMPRESSED_STEP, content_encoding, inflated, inflated_size
from ksrv.server.http.received_body import MESSAGE, body_too_large, ended_early, received_body

ALIGNMENT = 64
STEP = MIB
COMPRESSION_OVERHEAD = 1024
COUNTED_STEP = 64 * 1024
COUNTED_STEP_MOST = 8 * MIB
"""Between these a step of a body is as long as what has come of it already."""

DIGITS = re.compile(r"[0-9]{1,18}")

Environ = dict[str, Any]
Read = Callable[[int], bytes]


@dataclass(frozen=True, slots=True)
class Bound:
    """A route's own limit on bodies, below that on all.

    Attributes:
        nbytes: The limit.
        refusal: Makes the error of a length, or of what has come, and the limit.
    """

    nbytes: int
    refusal: Callable[[int, int], KsrvError]


def padding(header_length: str | None) -> int:
    """Return where in its block a body must begin so that its first tensor is aligned.

    Args:
        header_length: The raw `Inference-Header-Content-Length`, if there is one. One that is not a
            number is refused later, by the parser.
    """
    if header_length is None or DIGITS.fullmatch(header_length) is None:
        return 0
    return -int(header_length) % ALIGNMENT


class _Growing:
    """A block that doubles, holding what has been written so far behind its padding.

    Args:
        expected: How much that will probably be: the first block has room for it.
    """

    def __init__(
        self, offset: int, bound: Bound, reservation: Reservation, expected: int = 0
    ) -> None:
        self._offset = offset
        self._expected = expected
        self._bound = bound
        self._reservation = reservation
        self._view = memoryview(b"")
        self._length = 0

    @property
    def length(self) -> int:
        return self._length

    def write(self, data: bytes) -> None:
        if not data:
            return
        end = self._length + len(data)
        if end > self._bound.nbytes:
            raise self._bound.refusal(end, self._bound.nbytes)
        self._reservation.grow(len(data))
        start = self._offset + self._length
        if start + len(data) > len(self._view):
            self._grow(start + len(data))
        self._view[start : start + len(data)] = data
        self._length = end

    def _grow(self, needed: int) -> None:
        likely = self._offset + self._expected
        capacity = min(
            max(needed, likely, 2 * len(self._view), COMPRESSED_STEP),
            self._offset + self._bound.nbytes,
        )
        # A block that was in use before would keep memory for what is said to come and may not.
        view = memoryview(buffer_pool.lease_body(capacity, fresh=capacity > needed + SMALL_REQUEST))
        if self._length:
            used = slice(self._offset, self._offset + self._length)
            view[used] = self._view[used]
            buffer_pool.count_copy(self._length)
        self._view = view

    def finish(self) -> memoryview:
        if not self._length:
            return memoryview(buffer_pool.lease(0))
        return self._view[self._offset : self._offset + self._length]


class _Counted:
    """How far a body of known length may be read before more of it must be reserved."""

    def __init__(self, length: int, reservation: Reservation) -> None:
        self._length = length
        self._reservation = reservation
        self._end = 0

    def end(self, filled: int) -> int:
        """Return up to where the body may be filled now, which is beyond `filled`."""
        if filled >= self._end:
            step = min(max(filled, COUNTED_STEP), COUNTED_STEP_MOST)
            end = min(self._length, filled + step)
            self._reservation.grow(end - self._end)
            self._end = end
        return self._end


def content_length(environ: Environ) -> int | None:
    """Return the announced length of a body, or None.

    Raises:
        InvalidRequest: It is not a number.
    """
    text = environ.get("CONTENT_LENGTH")
    if not text:
        return None
    if DIGITS.fullmatch(text) is None:
        raise InvalidRequest(f"Content-Length must be a number, got {quote(text)}")
    return int(text)


def _receive_in_steps(read: Read, view: memoryview, counted: _Counted) -> None:
    filled = 0
    while filled < len(view):
        piece = read(min(STEP, counted.end(filled) - filled))
        if not piece:
            raise ended_early(filled, len(view))
        view[filled : filled + len(piece)] = piece
        filled += len(piece)


def _pieces(read: Read, length: int | None, step: int, most: int) -> Iterator[bytes]:
    """Yield the raw body: up to `length` bytes, or up to the end of a chunked one.

    Nobody waits for more than one byte above `most`, with which the reader refuses it.
    """
    received = 0
    while length is None or received < length:
        piece = read(min(step, (most + 1 if length is None else length) - received))
        if not piece:
            if length is not None:
                raise ended_early(received, length)
            return
        received += len(piece)
        yield piece


def _used_up(view: memoryview) -> Iterator[bytes]:
    """Yield a compressed body in steps; the memory of a large one goes as what it becomes takes its own."""
    for start in range(0, len(view), COMPRESSED_STEP):
        yield bytes(view[start : start + COMPRESSED_STEP])
        if len(view) > SMALL_REQUEST:
            buffer_pool.give_back(view, max(start - COMPRESSED_STEP, 0), start + COMPRESSED_STEP)


@dataclass(frozen=True, slots=True)
class ExpectedBody:
    """What a head says of a body that a route reads.

    Attributes:
        encoding: How it is compressed; "identity" if it is not.
        length: The announced length; None for a body in chunks.
        bound: The limit on what it holds.
        most: The limit on its bytes as they are sent.
    """

    encoding: str
    length: int | None
    bound: Bound
    most: int


def expected_body(
    environ: Environ,
    limits: Limits,
    reservation: Reservation,
    *,
    bound: Bound | None = None,
    decompress: bool = True,
) -> ExpectedBody:
    """Judge a body by its head, without reading it; nothing is taken from the budget.

    Args:
        environ: The WSGI environment.
        limits: The bound on all bodies.
        reservation: Knows what a request may hold at most.
        bound: The route's own limit.
        decompress: Whether compressed bodies are accepted.

    Raises:
        BodyTooLarge: The announced length is above a limit.
        InvalidRequest: The announced length is no number.
        UnsupportedEncoding: The body's `Content-Encoding` is not accepted.
    """
    encoding = content_encoding(str(environ.get("HTTP_CONTENT_ENCODING", "")), decompress)
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
    if encoding != "identity":  # what holds no more than the bound is hardly longer itself
        most = min(limits.body, most + most // 1000 + COMPRESSION_OVERHEAD)
    return ExpectedBody(encoding, length, bound, most)


def _received(
    message: AppMessage,
    limits: Limits,
    reservation: Reservation,
    head: ExpectedBody,
    offset: int,
) -> memoryview:
    """Return the body of a received message, inflated where it is compressed."""
    bound, most, encoding = head.bound, head.most, head.encoding
    received = max(message.announced, message.received)
    if most < received <= limits.body and message.state in ("unread", "too long"):
        raise bound.refusal(received, bound.nbytes)
    view = received_body(message, most, limits)
    reservation.adopt(message.take_counted())
    if encoding == "identity":
        if len(view) > most:
            raise bound.refusal(len(view), most)
        return view
    expected = inflated_size(view, encoding, limits)
    growing = _Growing(offset, bound, reservation, expected)
    for piece in inflated(_used_up(view), encoding, limits):
        growing.write(piece)
    return growing.finish()


def read_body(
    environ: Environ,
    limits: Limits,
    reservation: Reservation,
    *,
    offset: int = 0,
    bound: Bound | None = None,
    decompress: bool = True,
    on_read: Callable[[bool], None] = lambda reading: None,
) -> memoryview:
    """Read a request's whole body into one block.

    Args:
        limits: Bounds on the body's bytes, chunks and inflation.
        reservation: Takes the bytes out of the budget of those in flight.
        offset: How far into its block the body begins; see `padding`.
        decompress: Whether compressed bodies are accepted.
        on_read: Told True before the body is read and False behind it.

    Returns:
        A writable view of exactly the body's bytes; the block lives as long as the view.

    Raises:
        BodyTooLarge: The body is, or inflates to, more than the limits allow.
        InvalidRequest: The body ended early, came in too many chunks or is corrupt.
        Overloaded: The bytes in flight are at their bound.
        UnsupportedEncoding: The body's `Content-Encoding` is not accepted.
    """
    head = expected_body(environ, limits, reservation, bound=bound, decompress=decompress)
    encoding, length, bound = head.encoding, head.length, head.bound
    message = environ.get(MESSAGE)
    if message is not None:
        return _received(message, limits, reservation, head, offset)
    stream = environ["wsgi.input"]
    if length is None and "HTTP_TRANSFER_ENCODING" not in environ:
        length = 0
    if encoding == "identity" and length is not None:
        # A block that was in use before would keep memory for what may never come.
        block = buffer_pool.lease_body(offset + length, fresh=length > SMALL_REQUEST)
        view = memoryview(block)[offset : offset + length]
        counted = _Counted(length, reservation)
        on_read(True)
        _receive_in_steps(stream.read, view, counted)
        on_read(False)
        return view
    growing = _Growing(offset, bound, reservation)
    step = STEP if encoding == "identity" else COMPRESSED_STEP
    most = bound.nbytes if encoding == "identity" else sys.maxsize
    pieces = _pieces(stream.read, length, step, most)
    if encoding != "identity":
        pieces = inflated(pieces, encoding, limits)
    on_read(True)
    for piece in pieces:
        growing.write(piece)
    on_read(False)
    return growing.finish()
