"""Runs a request of TorchServe's routes (`Exchange`), and writes its answer.

The body of an answer is the item that the handler returned, and nothing else. If the handler has sent chunks first, the
body is chunked, and the last chunk is the handler's return value.
"""

import logging
import re
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import falcon

from ksrv.dialects.torchserve.routes.errors import JSON, TorchServeError, queue_full, render
from ksrv.errors import KsrvError, Overloaded
from ksrv.request import InferRequest, InferResponse
from ksrv.server.call import Find, run_infer
from ksrv.server.http.answers import send_parts, set_fields, status_line, usable_headers
from ksrv.server.http.wsgi_calls import CLIENT_LOOK_NS, StreamedCall

if TYPE_CHECKING:
    from ksrv.engine.engine import Engine

log = logging.getLogger(__name__)

STREAMED = "ts_stream_next"
NO_CACHE_HEADERS = {
    "pragma": "no-cache",
    "cache-control": "no-cache; no-store, must-revalidate, private",
    "expires": "Thu, 01 Jan 1970 00:00:00 UTC",
}
"""The headers against caching that TorchServe sends with every answer."""

_STATUS = re.compile(r"[2-5][0-9]{2}( [\x20-\x7e]{1,128})?")


def prepare(resp: falcon.Response) -> None:
    """Set the headers that every answer has."""
    resp.set_headers(NO_CACHE_HEADERS)


def send_document(resp: falcon.Response, document: object) -> None:
    """Answer with a JSON document in TorchServe's form."""
    resp.content_type = JSON
    resp.data = render(document)


def send_error(resp: falcon.Response, error: TorchServeError) -> None:
    """Answer with an error."""
    resp.status = status_line(error.http_status)
    resp.content_type = JSON
    resp.data = error.body()
    if error.retry_after is not None:
        resp.set_header("Retry-After", str(error.retry_after))
    if error.challenge is not None:
        resp.set_header("WWW-Authenticate", error.challenge)


class Exchange(StreamedCall):
    """One running request. Creating it submits the request; then `first` or `response` wait for the answer.

    Args:
        read: Reads the request; see `ksrv.server.call.InferCall.read`.
        environ: The WSGI environment of the client; the request is cancelled when this client disconnects. None if
            nobody watches a client.

    Raises:
        KsrvError: The call is refused.
    """

    def __init__(
        self,
        engine: "Engine",
        read: Callable[[Find], InferRequest],
        environ: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(environ or {}, read)
        self._submitted: InferRequest | None = None
        run_infer(self, engine, waits=True)
        try:
            self.check()
        except Overloaded as error:
            if self._submitted is None:  # the memory budget has no room for the body
                raise
            raise queue_full(self._submitted.model_name, error.reason) from None

    def read(self, find: Find) -> InferRequest:
        """See `InferCall.read`."""
        self._submitted = super().read(find)
        return self._submitted

    def pieces(self, chunk: InferResponse) -> Iterator[bytes]:
        """Yield the first chunk, the further chunks, and the final answer.

        A failure ends the body without the last chunk of HTTP/1.1, so the client notices it.
        """
        chunks = self.answers
        yield item_bytes(chunk)
        while not chunks.finished:
            following = chunks.take(CLIENT_LOOK_NS / 1e9)
            # At an empty piece the server checks whether the client is still connected.
            yield b"" if following is None else item_bytes(following)
        try:
            last = self.response()
        except KsrvError as error:
            log.error(
                "a streamed answer was cut off, because the handler failed: %s", error.message
            )
            raise
        if last.outputs:
            yield item_bytes(last)


class _Streamed:
    """The body of a streamed answer: closing it cancels the request, even if no piece was taken."""

    def __init__(self, exchange: Exchange, chunk: InferResponse) -> None:
        self._exchange = exchange
        self._chunk = chunk

    def __iter__(self) -> Iterator[bytes]:
        return self._exchange.pieces(self._chunk)

    def close(self) -> None:
        self._exchange.cancel()


def item_bytes(response: InferResponse) -> bytes:
    """Return the item of an answer to one of TorchServe's requests."""
    return bytes(_item(response))


def _item(response: InferResponse) -> bytes | memoryview:
    data = response.outputs[0].data
    assert isinstance(data, list)  # the runner answers such requests with one BYTES element
    return data[0]


def send_stream(resp: falcon.Response, exchange: Exchange, chunk: InferResponse) -> None:
    """Answer with a chunked body.

    Args:
        chunk: The first chunk, which the handler has sent already.
    """
    resp.status = status_line(HTTPStatus.OK)
    resp.content_type = chunk.facts.get("content_type") or falcon.MEDIA_TEXT
    resp.set_header(STREAMED, "true")
    resp.stream = _Streamed(exchange, chunk)


def send_answer(resp: falcon.Response, response: InferResponse, environ: dict[str, Any]) -> None:
    """Answer with the item that the handler returned, its status and its headers."""
    headers = dict(response.headers)
    resp.status = _status(response.facts.get("status", ""))
    resp.content_type = response.facts.get("content_type") or falcon.MEDIA_TEXT
    for name in list(headers):
        if name.lower() == "content-type":
            usable = usable_headers({"x": headers.pop(name)})
            resp.content_type = usable[0][1] if usable else resp.content_type
    set_fields(resp, usable_headers(headers))
    item = _item(response)
    send_parts(resp, [item], len(item), environ)


def _status(text: str) -> str:
    if not text:
        return status_line(HTTPStatus.OK)
    if not _STATUS.fullmatch(text):
        log.warning(
            "a handler set the invalid response status %.64r; 500 is sent instead: set a number from 200 to 599",
            text,
        )
        return status_line(HTTPStatus.INTERNAL_SERVER_ERROR)
    return text if " " in text else status_line(int(text))
