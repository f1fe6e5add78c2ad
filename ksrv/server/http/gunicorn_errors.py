"""The answer to a message that is not HTTP: JSON and a sentence, like every other error.

gunicorn's parser refuses such a message before there is a request, and answers with a page of HTML
that repeats what the client sent. All its workers write that page through one function, which a
ksrv worker process replaces by the one below, once it has been forked.
"""

import re
from typing import Any

import orjson
from gunicorn import util

from ksrv.observe.traffic import count_status
from ksrv.server.rest.responses import status_line

_CLIENTS_OWN = re.compile(r"['\":(]")
"""Where in gunicorn's sentence the client's own text begins."""


def _status(status: int) -> int:
    return 400 if status == 501 else status  # an unknown transfer coding is the client's mistake


def render_error(status: int, message: str) -> bytes:
    """Return the whole answer.

    Args:
        status: The status that gunicorn chose.
        message: Its sentence; what it repeats of the client's is left out.
    """
    status = _status(status)
    if status >= 500:
        text = "the server failed; see its log"
    else:
        kind = _CLIENTS_OWN.split(message)[0].strip() or "malformed request"
        text = f"the message is not HTTP that this server accepts: {kind}"
    body = orjson.dumps({"error": text})
    head = (
        f"HTTP/1.1 {status_line(status)}\r\n"
        f"Connection: close\r\n"
        f"Content-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode("latin-1") + body


def write_error(sock: Any, status_int: int, reason: str, mesg: str) -> None:
    """Answer in the place of `gunicorn.util.write_error`.

    Args:
        sock: The connection.
        status_int: The status.
        reason: gunicorn's phrase for it, which is the standard one.
        mesg: Its sentence.
    """
    count_status("http", _status(status_int))
    util.write_nonblock(sock, render_error(status_int, mesg))


def speak_json() -> None:
    """Have gunicorn's workers in this process answer malformed messages with JSON."""
    util.write_error = write_error
