"""The head that a WSGI app passes to `start_response`, and the framing of the answer that follows from it."""

import re
from collections.abc import Callable, Sequence
from typing import Any

from ksrv.errors import HEADER_NAME, HEADER_VALUE

_STATUS = re.compile(r"[0-9]{3}(?: [ \t\x21-\x7e\x80-\xff]*)?")
_HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailers",
        "transfer-encoding",
        "upgrade",
        "server",
        "date",
    }
)
"""Fields that the native server says itself (RFC 9110 7.6.1), or that no app may say."""


class WsgiResponse:
    """The head of an answer.

    Args:
        method: The request's method.
        http_1_0: Whether the request was one of HTTP/1.0, which knows no chunks.

    Attributes:
        status: The status line behind the version.
        code: The status.
        fields: The header fields that are sent.
        length: The Content-Length; None where it is not known.
        omits_body: Whether no body follows, whatever the app says (RFC 9110 6.4.1).
        chunked: Whether the body is sent in chunks.
        closes: Whether the end of the connection is the end of the body.
    """

    def __init__(self, method: str, *, http_1_0: bool) -> None:
        self._method = method
        self._http_1_0 = http_1_0
        self.status = ""
        self.code = 0
        self.fields: list[tuple[str, str]] = []
        self.length: int | None = None
        self.omits_body = self.chunked = self.closes = False

    def start(
        self, status: str, headers: Sequence[tuple[str, str]], exc_info: Any = None
    ) -> Callable[[bytes], None]:
        """Take status and headers: WSGI's `start_response`.

        Raises:
            AssertionError: They were set before.
            ValueError: They are no status, or no header fields.
        """
        if self.status and exc_info is None:
            raise AssertionError("the app has set the answer's headers already")
        if not _STATUS.fullmatch(status):
            raise ValueError(f"invalid status {status!r}")
        self.status, self.code = status, int(status[:3])
        self.fields, self.length = [], None
        for name, value in headers:
            if not HEADER_NAME.fullmatch(name) or not HEADER_VALUE.fullmatch(value):
                raise ValueError(f"invalid header field {name!r}")
            if name.lower() in _HOP_BY_HOP:
                continue
            if name.lower() == "content-length":
                self.length = int(value)
            self.fields.append((name, value.strip(" \t")))
        bodiless = self.code < 200 or self.code in (204, 304)
        self.omits_body = self._method == "HEAD" or bodiless
        if self.code < 200 or self.code == 204:  # RFC 9110 8.6
            self.fields = [one for one in self.fields if one[0].lower() != "content-length"]
            self.length = None
        unframed = self.length is None and not self.omits_body
        self.chunked = unframed and not self._http_1_0
        self.closes = unframed and self._http_1_0
        return self._write

    def _write(self, data: bytes) -> None:
        raise NotImplementedError("the app returns its body; WSGI's write is not served")
