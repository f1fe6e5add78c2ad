"""The answer to a message that is not HTTP: JSON and a sentence, like every other error.

gunicorn's parser refuses such a message before there is a request.
"""

import re

import orjson
from gunicorn.http import errors

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
