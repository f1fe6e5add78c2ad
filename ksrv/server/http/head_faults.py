"""The answers to a head that the native parser refuses: a status, and a sentence for each of its faults.

The faults and the sections of RFC 9112 that forbid them are in `native/http/request_head.hpp`.
"""

from http import HTTPStatus

from ksrv.errors import HeadTooLarge, InvalidRequest, KsrvError
from ksrv.limits import Limits, show_limit

_NOT_HTTP = "the message is not HTTP that this server accepts: "

_FAULTS: dict[str, tuple[int, str]] = {
    "line end": (400, "a line of the head does not end with CR LF, or holds a NUL"),
    "request line too long": (414, "the request line is too large"),
    "too many fields": (431, "the head has too many header fields"),
    "field too long": (431, "a header field is too large"),
    "request line": (400, "the first line is not a method, a target and a version"),
    "method": (400, "the method is not a word of 3 to 20 characters in upper case"),
    "target": (
        400,
        "the target is neither a path that begins with '/' nor a URL, or holds a character that must be escaped",
    ),
    "version": (400, "the version is not HTTP/1.0 or HTTP/1.1"),
    "field line": (400, "a line of the head is not a name, a colon and a value"),
    "field name": (400, "the name of a header field holds a character that no name has"),
    "folded": (400, "a header field is continued on a further line"),
    "field value": (400, "the value of a header field holds a control character"),
    "length": (400, "Content-Length is not a number"),
    "lengths": (400, "the head has several Content-Length fields; one is allowed"),
    "length and coding": (400, "the head has both Content-Length and Transfer-Encoding"),
    "coding": (
        400,
        "Transfer-Encoding is not chunked alone; a compressed body has a Content-Encoding",
    ),
    "old coding": (400, "HTTP/1.0 has no Transfer-Encoding"),
    "no host": (400, "a request of HTTP/1.1 needs a Host field"),
    "hosts": (400, "the head has several Host fields; one is allowed"),
    "host": (400, "the Host field names no host with an optional port"),
    "content types": (400, "the head has several Content-Type fields; one is allowed"),
    "expectation": (417, "Expect is not 100-continue"),
    "scheme": (400, "the header fields for the scheme contradict each other"),
}


class RefusedHead(InvalidRequest):
    """A head that is no head of HTTP/1.1; the connection ends with the answer.

    Args:
        fault: One of the faults of the native parser.
    """

    def __init__(self, fault: str) -> None:
        status, text = _FAULTS[fault]
        super().__init__(_NOT_HTTP + text)
        self.http_status = HTTPStatus(status)


def head_error(fault: str, limits: Limits) -> KsrvError:
    """Return the error for a fault of a head.

    Args:
        fault: One of the faults of the native parser.
        limits: The limits of the server.
    """
    if fault == "too long":
        return HeadTooLarge(
            f"the request's head is longer than the {show_limit('head', limits.head)}"
        )
    return RefusedHead(fault)
