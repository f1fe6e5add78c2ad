"""The framing of a chunked body: refused at the first byte that cannot be right.

gunicorn's reader waits for a line end that never comes when chunks end with line feeds alone, and for
as many bytes as a size announces, however many. This one says what is wrong as soon as it is known.
"""

import re
from collections.abc import Iterator
from typing import Any

from gunicorn.http.body import Body, ChunkedReader
from gunicorn.http.errors import NoMoreData

from ksrv.errors import BodyTooLarge, InvalidRequest, KsrvError, quote
from ksrv.limits import Limits, show_limit

_LINE_END = b"\r\n"
_SIZE_SO_FAR = re.compile(rb"0*[0-9A-Fa-f]{0,16}(?:[ \t]*(?:;[^\n]*)?\r?)?")
"""What a line with a chunk's size may begin with while its end is still to come."""

SIZE_BOUND = 2**64


def too_many_chunks(most: int) -> InvalidRequest:
    """Return the error for a body in more chunks than the limit."""
    return InvalidRequest(f"the body has more chunks than the {show_limit('chunks', most)}")


def chunks_too_long(announced: int, most: int) -> BodyTooLarge:
    """Return the error for chunks that announce more than any body may have."""
    return BodyTooLarge(
        f"the body's chunks announce {announced} bytes, above the {show_limit('body', most)}"
    )


def malformed_chunks(fault: str, found: bytes) -> InvalidRequest:
    """Return the error for a body whose chunks are none.

    Args:
        found: The bytes that are wrong.
    """
    shown = f", got {quote(found.decode('latin-1'))}" if found else ""
    return InvalidRequest(f"the chunked body is malformed: {fault}{shown}")


class StrictChunks(ChunkedReader):  # type: ignore[misc]
    """gunicorn's reader of a chunked body, within the limits.

    Args:
        limits: Bounds on chunks and on the body's bytes.
    """

    def __init__(self, message: Any, limits: Limits) -> None:
        super().__init__(message, message.unreader)
        self._limits = limits
        self._chunks = 0
        self._announced = 0
        self._in_trailers = False

    def parse_chunked(self, unreader: Any) -> Iterator[bytes]:
        """Yield the bytes of the chunks.

        Args:
            unreader: gunicorn's source of bytes.

        Raises:
            KsrvError: The framing is malformed, or the limits are passed.
            NoMoreData: The client closed the connection.
        """
        size, rest = self.parse_chunk_size(unreader)
        while size:
            while len(rest) < size:
                size -= len(rest)
                yield rest
                rest = unreader.read(None, read_ahead=size)
                if not rest:
                    raise NoMoreData
            yield rest[:size]
            behind = bytearray(rest[size:])
            while len(behind) < len(_LINE_END) and _LINE_END.startswith(behind):
                super().read_into(unreader, behind)
            if not behind.startswith(_LINE_END):
                raise self._malformed("a chunk is not followed by CR LF", behind[:2])
            size, rest = self.parse_chunk_size(unreader, bytes(behind[2:]))

    def parse_chunk_size(self, unreader: Any, data: bytes | None = None) -> tuple[int, bytes]:
        """Return a chunk's size and the bytes that were read behind its line."""
        self._chunks += 1
        if self._chunks > self._limits.chunks + 1:  # the empty one at the end is not the body's
            raise self._last(too_many_chunks(self._limits.chunks))
        size, rest = super().parse_chunk_size(unreader, data)
        if size >= SIZE_BOUND:
            raise self._malformed("a chunk's size has more than 64 bits", b"")
        self._announced += size
        if self._announced > self._limits.body:
            raise self._last(chunks_too_long(self._announced, self._limits.body))
        return size, rest or b""

    def parse_trailers(self, unreader: Any, data: bytes) -> Any:
        """Read what follows the last chunk."""
        self._in_trailers = True
        return super().parse_trailers(unreader, data)

    def read_into(self, unreader: Any, buf: bytearray) -> None:
        """Read more of a line, unless the bytes at hand cannot begin a chunk's line."""
        if not self._in_trailers and not _SIZE_SO_FAR.fullmatch(buf):
            raise self._malformed("a chunk's size is not a line of hexadecimal digits", buf)
        super().read_into(unreader, buf)

    def _malformed(self, fault: str, found: bytes | bytearray) -> KsrvError:
        return self._last(malformed_chunks(fault, bytes(found)))

    def _last(self, error: KsrvError) -> KsrvError:
        """Have the answer say that the connection ends: where a next message begins is unknown."""
        self.req.force_close()
        return error


def check_transfer_coding(environ: dict[str, Any]) -> None:
    """Refuse a body whose transfer coding is not chunked alone: its chunks would be read as its content.

    Raises:
        InvalidRequest: `Transfer-Encoding` names something else beside chunked.
    """
    coding = str(environ.get("HTTP_TRANSFER_ENCODING", "chunked"))
    if coding.strip().lower() == "chunked":
        return
    stream = environ["wsgi.input"]
    if isinstance(stream, Body) and type(stream.reader) is ChunkedReader:
        stream.reader.req.force_close()
    raise InvalidRequest(
        f"Transfer-Encoding {quote(coding)} is not read; expected chunked alone, and "
        f"Content-Encoding for a compressed body"
    )


def read_strictly(stream: object, limits: Limits) -> None:
    """Have a chunked body of gunicorn's read strictly; other servers' streams are left alone.

    Args:
        stream: The WSGI input, of which nothing was read.
        limits: Bounds on chunks and on the body's bytes.
    """
    if isinstance(stream, Body) and type(stream.reader) is ChunkedReader:
        stream.reader = StrictChunks(stream.reader.req, limits)
