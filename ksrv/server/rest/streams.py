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
"""If answers follow each other fast, all answers within this time are sent together, because waking a thread costs more
than an answer."""

Render = Callable[[InferResponse], bytes]
"""Makes the JSON object of one answer."""


def stream_type(accept: str | None) -> str | None:
    """Return the content type of the stream that an `Accept` header prefers, or None.

    A stream is sent to clients that name one and do not prefer JSON.
    """
    known = [one for one in accepted(accept) if one[0] in ("application/json", *_STREAMS)]
    name, quality = max(
        known, key=lambda one: one[1], default=("", 0.0)
    )  # of equal qualities the first
    return name if name in _STREAMS and quality > 0 else None


class StreamedAnswer:
    """One streaming request under way: an iterator of the pieces of its answer, for WSGI.

    An empty piece comes where the handler is silent, so that the server can look at the client.

    Args:
        call: The call.
        content_type: `EVENT_STREAM`, or one of the types of JSON lines.
        render: Makes the JSON object of one answer.

    Attributes:
        probe: Bytes that say nothing; the system of a client that has gone answers them with a reset.
        head_fields: The headers that the handler chose before its first answer, once that is there.
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
        """Wait for the first piece, so that a request that fails before it still gets a status of its error.

        Raises:
            KsrvError: The request failed before the first piece.
        """
        try:
            self._first.append(next(self._pieces, b""))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give the request up, unless it has ended, and the answers that wait for the client."""
        self._call.cancel()
        self._pieces.close()  # its frame refers to this object

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
        """Yield the answers that are there; now and then an empty list if none arrives."""
        answers = self._call.answers
        came_at = 0.0
        while not answers.finished:
            found = answers.take_all(CLIENT_LOOK_NS / 1e9)
            yield found
            now = time.monotonic()
            if found and now - came_at < FAST_SECONDS:
                answers.gather(TOGETHER_SECONDS)
            came_at = now
        last = self._call.response()
        if last.outputs or not answers.chunked:  # what ends a generator's chunks holds nothing
            yield [last]

    def _rendered(self, responses: list[InferResponse]) -> tuple[bytes, KsrvError | None]:
        """Return the answers as bytes, up to one that cannot be written as JSON, and why it cannot."""
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
        KsrvError: The request failed before its first answer, where the server waits for it here.
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
