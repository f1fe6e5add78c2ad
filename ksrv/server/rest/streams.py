"""Answers that are sent while their handler makes them: server-sent events, or one JSON object a line.

A failure before the first answer has an HTTP status; a later failure is the last event.
A client that leaves cancels its request.
"""

import time
from collections.abc import Callable, Generator, Iterator
from typing import Any, cast

import falcon
import orjson

from ksrv.errors import KsrvError
from ksrv.protocol.accept import accepted
from ksrv.request import InferResponse
from ksrv.server.http.answers import report_http, set_fields, usable_headers
from ksrv.server.http.received_body import MESSAGE
from ksrv.server.http.wsgi_calls import CLIENT_LOOK_NS, StreamedCall

EVENT_STREAM = "text/event-stream"
JSON_LINES = "application/jsonl"
_STREAMS = (EVENT_STREAM, JSON_LINES, "application/x-ndjson", "application/x-jsonlines")
KEEP_ALIVE_SECONDS = 15.0
"""After so long without an event a comment is sent, so that proxies keep the connection."""

FAST_SECONDS = 0.02
TOGETHER_SECONDS = 0.005
"""If two answers follow each other within `FAST_SECONDS`, the stream collects the answers of the next
`TOGETHER_SECONDS` and sends them together, because waking the thread costs more than an answer."""

Render = Callable[[InferResponse], bytes]
"""Makes the JSON object of one answer."""


def stream_type(accept: str | None) -> str | None:
    """Return the content type of the stream that an `Accept` header prefers, or None.

    A stream is sent to clients that name one and do not prefer JSON.
    """
    known = [pair for pair in accepted(accept) if pair[0] in ("application/json", *_STREAMS)]
    # max returns the first of equal qualities.
    name, quality = max(known, key=lambda pair: pair[1], default=("", 0.0))
    return name if name in _STREAMS and quality > 0 else None


class StreamedAnswer:
    """One streaming request under way: an iterator of the pieces of its answer, for WSGI.

    While the handler makes nothing, it yields an empty piece from time to time, so that the server can check whether
    the client has left.

    Args:
        call: The call.
        content_type: `EVENT_STREAM`, or one of the types of JSON lines.
        render: Makes the JSON object of one answer.

    Attributes:
        probe: Bytes that clients ignore. If the client has left, its system answers them with a reset.
        head_fields: The headers of the handler's first answer; empty before that answer.
    """

    def __init__(self, call: StreamedCall, content_type: str, render: Render) -> None:
        self._events = content_type == EVENT_STREAM
        self.probe = b": \n\n" if self._events else b"\n"
        self.head_fields: list[tuple[str, str]] = []
        self._sent_at = time.monotonic()
        self._render = render
        self._call = call
        self._pieces = self._make_pieces()
        self._first: list[bytes] = []

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        return self._first.pop() if self._first else next(self._pieces)

    def begin(self) -> None:
        """Wait for the first piece, so that a request that fails before it gets an error status instead of 200.

        Raises:
            KsrvError: The request failed before the first piece.
        """
        try:
            self._first.append(next(self._pieces, b""))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Cancel the request if it still runs, and drop the answers that were not sent."""
        self._call.cancel()
        self._pieces.close()  # breaks the reference cycle with this object

    def _make_pieces(self) -> Generator[bytes, None, None]:
        begun = False
        try:
            for responses in self._responses():
                if responses and not begun:
                    self.head_fields = usable_headers(responses[0].headers)
                framed, error = self._rendered(responses)
                if framed:
                    yield framed
                    begun = True
                if error is not None:
                    raise error
                if begun and not framed:
                    yield self._silence()
        except Exception as error:
            if not begun:
                raise
            yield self._framed_error(report_http(error, self._call.environ))

    def _responses(self) -> Iterator[list[InferResponse]]:
        """Yield the answers that have arrived; an empty list if none arrives for `CLIENT_LOOK_NS`."""
        answers = self._call.answers
        taken_at = 0.0
        while not answers.finished:
            found = answers.take_all(CLIENT_LOOK_NS / 1e9)
            yield found
            now = time.monotonic()
            if found and now - taken_at < FAST_SECONDS:
                answers.gather(TOGETHER_SECONDS)
            taken_at = now
        last = self._call.response()
        if last.outputs or not answers.chunked:  # the last response of a generator is empty
            yield [last]

    def _rendered(self, responses: list[InferResponse]) -> tuple[bytes, KsrvError | None]:
        """Return answers as bytes. If an answer cannot be written as JSON, stop before it and also return the error."""
        framed = []
        if responses:
            self._sent_at = time.monotonic()
        for response in responses:
            try:
                framed.append(self._framed(self._render(response)))
            except KsrvError as error:
                return b"".join(framed), error
        return b"".join(framed), None

    def _silence(self) -> bytes:
        """Return the piece for a silent moment: empty, or a comment that keeps proxies from closing the stream."""
        now = time.monotonic()
        if not self._events or now - self._sent_at < KEEP_ALIVE_SECONDS:
            return b""
        self._sent_at = now
        return self.probe

    def _framed(self, document: bytes) -> bytes:
        return b"data: " + document + b"\n\n" if self._events else document + b"\n"

    def _framed_error(self, error: KsrvError) -> bytes:
        document = orjson.dumps({"error": error.message})
        return (b"event: error\n" if self._events else b"") + self._framed(document)


def send_stream(
    resp: falcon.Response, call: StreamedCall, content_type: str, render: Render
) -> None:
    """Answer with a stream.

    Args:
        content_type: `EVENT_STREAM`, or one of the types of JSON lines.
        render: Makes the JSON object of one answer.

    Raises:
        KsrvError: The request failed before its first answer. Not raised under the native server, which
            sends such an error itself.
    """
    resp.content_type = (
        f"{content_type}; charset=utf-8" if content_type == EVENT_STREAM else content_type
    )
    resp.set_header("Cache-Control", "no-cache")
    resp.set_header("X-Accel-Buffering", "no")  # nginx would collect the events
    answer = StreamedAnswer(call, content_type, render)
    if MESSAGE not in call.environ:  # the native server begins the answer with its first piece
        answer.begin()
        set_fields(resp, answer.head_fields)
    resp.stream = cast(Any, answer)
