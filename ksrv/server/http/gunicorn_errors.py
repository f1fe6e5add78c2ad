"""The answer to a message that is not HTTP: JSON and a sentence, like every other error.

gunicorn's parser refuses such a message before there is a request, and answers with a page of HTML
that repeats what the client sent. All its workers write that page through one function, which a
ksrv worker process replaces by the one below, once it has been forked.
"""

import re
from typing import Any

import orjson
from gunicorn import util
from gunicorn.http import errors

from ksrv.observe.traffic import count_status
from ksrv.server.http.answers import status_line

_CLIENTS_OWN = re.compile(r"['\":(]")
"""Where in gunicorn's sentence the client's own text begins."""

_STATUSES: dict[type[Exception], int] = {
    errors.LimitRequestLine: 414,
    errors.LimitRequestHeaders: 431,
    errors.ExpectationFailed: 417,
    errors.UnsupportedTransferCoding: 501,
    errors.ConfigurationProblem: 500,
}
_SENTENCES: dict[type[Exception], str] = {
    errors.InvalidRequestLine: "Invalid Request Line",
    errors.InvalidRequestMethod: "Invalid Method",
    errors.InvalidHTTPVersion: "Invalid HTTP Version",
    errors.LimitRequestHeaders: "Error parsing headers",
}


def _status(status: int) -> int:
    return 400 if status == 501 else status  # an unknown transfer coding is the client's mistake


def refusal_of(error: Exception) -> tuple[int, str]:
    """Return the status and the sentence for a head that gunicorn's parser refuses, as gunicorn has them."""
    status = next((status for kind, status in _STATUSES.items() if isinstance(error, kind)), 400)
    text = str(error)
    if isinstance(error, (errors.NoMoreData, StopIteration)):
        return status, "a line of the head does not end with CR LF, or holds a NUL"
    for kind, sentence in _SENTENCES.items():
        if isinstance(error, kind):
            text = sentence
    return status, text


def render_refusal(status: int, message: str) -> tuple[int, bytes, bytes, list[bytes | memoryview]]:
    """Return the answer to a malformed message in the parts that an exchange takes.

    Args:
        message: Its sentence; what it repeats of the client's is left out.
    """
    status = _status(status)
    if status >= 500:
        text = "the server failed; see its log"
    else:
        kind = _CLIENTS_OWN.split(message)[0].strip() or "malformed request"
        text = f"the message is not HTTP that this server accepts: {kind}"
    body = orjson.dumps({"error": text})
    fields = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return status, status_line(status).encode("latin-1"), fields.encode("ascii"), [body]


def write_error(sock: Any, status_int: int, reason: str, mesg: str) -> None:
    """Answer in the place of `gunicorn.util.write_error`; the connection closes behind that.

    gunicorn does not tell the method. A socket of ksrv's own threads knows of HEAD, and that such an
    answer has no body; those of gunicorn's other workers do not.

    Args:
        reason: gunicorn's phrase for it, which is the standard one.
    """
    status, line, fields, body = render_refusal(status_int, mesg)
    count_status("http", status)
    head = b"".join((b"HTTP/1.1 ", line, b"\r\nConnection: close\r\n", fields, b"\r\n"))
    util.write_nonblock(sock, head if getattr(sock, "wants_head", False) else head + body[0])


def speak_json() -> None:
    """Have gunicorn's workers in this process answer malformed messages with JSON."""
    util.write_error = write_error
