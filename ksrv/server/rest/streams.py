"""Answers that are sent while their handler makes them: server-sent events, or one JSON object a line.

A failure before the first answer has an HTTP status; a later failure is the last event.
A client that leaves cancels its request.
"""

import math
import secrets
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, cast

import falcon
import orjson

from ksrv._native.server.response_stream import ChunkForm
from ksrv.errors import KsrvError
from ksrv.model.datatypes import BINARY_ONLY
from ksrv.protocol.accept import accepted
from ksrv.request import InferResponse, Tensor
from ksrv.server.http.answers import report_http, set_fields, usable_headers
from ksrv.server.http.received_body import MESSAGE
from ksrv.server.http.wsgi_calls import CLIENT_LOOK_NS, StreamedCall

EVENT_STREAM = "text/event-stream"
JSON_LINES = "application/jsonl"
_STREAMS = (EVENT_STREAM, JSON_LINES, "application/x-ndjson", "application/x-jsonlines")
KEEP_ALIVE_SECONDS = 15.0
"""After this time without an event, a comment is sent, so that proxies keep the connection."""

FAST_SECONDS = 0.02
TOGETHER_SECONDS = 0.005
"""If two answers follow each other within `FAST_SECONDS`, the stream collects the answers of the next
`TOGETHER_SECONDS` and sends them together, because waking the thread costs more than an answer."""

Render = Callable[[InferResponse], bytes]
"""Makes the JSON object of one answer."""

_MARK = secrets.token_hex(16).encode()
"""Stands for the value in a rendered answer. No client can know it, so it occurs nowhere else."""


def stream_type(accept: str | None) -> str:
    """Return the content type of the stream that an `Accept` header prefers, or "".

    A stream is sent to clients that name one and do not prefer JSON.
    """
    known = [pair for pair in accepted(accept) if pair[0] in ("application/json", *_STREAMS)]
    # max returns the first of equal qualities.
    name, quality = max(known, key=lambda pair: pair[1], default=("", 0.0))
    return name if name in _STREAMS and quality > 0 else ""


@dataclass
class StreamForm:
    """How the answers of a stream are written.

    Args:
        content_type: `EVENT_STREAM`, or one of the types of JSON lines.
        has_arrays: Whether `render` writes numbers of any shape as a flat array, in the form of orjson.
        render: Makes the JSON object of one answer. Set when the request is read.
    """

    content_type: str
    has_arrays: bool = False
    render: Render = field(init=False)

    @property
    def events(self) -> bool:
        """Whether answers are server-sent events."""
        return self.content_type == EVENT_STREAM

    def framed(self, document: bytes) -> bytes:
        """Return a JSON object as an event, or a line."""
        return b"data: " + document + b"\n\n" if self.events else document + b"\n"

    def written(self, response: InferResponse) -> bytes:
        """Return an answer as an event, or a line.

        Raises:
            KsrvError: It cannot be written as JSON.
        """
        return self.framed(self.render(response))

    def chunk_form(self, response: InferResponse) -> ChunkForm | None:
        """Return the form of the answers after the first, if they differ from it in the value of the output alone.

        The first answer is rendered with `_MARK` as the value, and split there: the pieces are the fixed bytes.

        Args:
            response: The first answer, which has one output.

        Returns:
            The form, whose `kind` is "json_value" for one text or number, or "json_array" for numbers with their
            brackets. None if the answers have no such form: for instance, texts that the client wants in base64.
        """
        tensor = response.outputs[0]
        is_text = tensor.datatype == "BYTES"
        has_one = math.prod(tensor.shape) == 1
        if tensor.datatype in BINARY_ONLY or not (has_one or (self.has_arrays and not is_text)):
            return None
        marked = Tensor(tensor.name, tensor.datatype, tensor.shape, [_MARK], tensor.parameters)
        document = self.written(replace(response, outputs=[marked]))
        value, kind = b'"' + _MARK + b'"', "json_value"
        if not is_text and b"[" + value + b"]" in document:
            if not self.has_arrays:
                return None
            value, kind = b"[" + value + b"]", "json_array"
        pieces = document.split(value)
        return ChunkForm(tensor, kind, pieces) if len(pieces) > 1 else None


class StreamedAnswer:
    """One streaming request under way: an iterator of the pieces of its answer, for WSGI.

    While the handler makes nothing, it yields an empty piece from time to time, so that the server can check whether
    the client has left.

    Args:
        call: The call.
        form: How its answers are written.

    Attributes:
        probe: Bytes that clients ignore. If the client has left, its system answers them with a reset.
        head_fields: The headers of the handler's first answer; empty before that answer.
    """

    def __init__(self, call: StreamedCall, form: StreamForm) -> None:
        self.probe = b": \n\n" if form.events else b"\n"
        self.head_fields: list[tuple[str, str]] = []
        self._sent_at = time.monotonic()
        self._form = form
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
                if responses and not begun and isinstance(responses[0], InferResponse):
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

    def _responses(self) -> Iterator[list[InferResponse | bytes]]:
        """Yield the answers that are there, some as bytes; now and then an empty list if none arrives."""
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

    def _rendered(self, responses: list[InferResponse | bytes]) -> tuple[bytes, KsrvError | None]:
        """Return the answers as bytes, up to one that cannot be written as JSON, and why it cannot."""
        framed = []
        if responses:
            self._sent_at = time.monotonic()
        for response in responses:
            try:
                if isinstance(response, bytes):
                    framed.append(response)
                else:
                    framed.append(self._form.written(response))
            except KsrvError as error:
                return b"".join(framed), error
        return b"".join(framed), None

    def _silence(self) -> bytes:
        """Return the piece for a silent moment: empty, or a comment that keeps proxies from closing the stream."""
        now = time.monotonic()
        if not self._form.events or now - self._sent_at < KEEP_ALIVE_SECONDS:
            return b""
        self._sent_at = now
        return self.probe

    def _framed_error(self, error: KsrvError) -> bytes:
        document = orjson.dumps({"error": error.message})
        return (b"event: error\n" if self._form.events else b"") + self._form.framed(document)


def send_stream(resp: falcon.Response, call: StreamedCall, form: StreamForm) -> None:
    """Answer with a stream.

    Raises:
        KsrvError: The request failed before its first answer. Not raised under the native server, which
            sends such an error itself.
    """
    resp.content_type = form.content_type + ("; charset=utf-8" if form.events else "")
    resp.set_header("Cache-Control", "no-cache")
    resp.set_header("X-Accel-Buffering", "no")  # nginx would collect the events
    answer = StreamedAnswer(call, form)
    if MESSAGE not in call.environ:  # the native server begins the answer with its first piece
        answer.begin()
        set_fields(resp, answer.head_fields)
    resp.stream = cast(Any, answer)
