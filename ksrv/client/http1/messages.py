"""Writes HTTP/1.1 requests, parses the heads of responses, and makes the error texts, without any input or output."""

import re
import select
import socket
import ssl
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from ksrv.client.errors import (
    NAMES_AN_AUTHORITY,
    NOTHING_LISTENS,
    ConnectionFailed,
    DeadlineExceeded,
)
from ksrv.client.operations import check_token
from ksrv.client.rest import HttpRequest
from ksrv.client.tensors import Block

HEAD_BYTES = 65536
"""The longest response head, and the longest first line of a chunk."""

IDLE_CONNECTIONS = 64
"""How many connections a pool keeps."""

_JOINED_BYTES = 65536
"""Smaller parts of a request are joined up to this size, because each part is a system call."""
_PROGRESS_BYTES = 1 << 20
"""A request with a `progress` callback is sent in pieces of this size."""

# The most digits of a Content-Length (decimal) and of a chunk's size (hexadecimal), so that both fit into 63 bits.
_LENGTH_DIGITS = 18
_CHUNK_DIGITS = 15
_HEX_DIGITS = frozenset(b"0123456789abcdefABCDEF")
_STATUS = re.compile("[0-9]{3}")


@dataclass(frozen=True)
class Target:
    """The address that requests are sent to.

    Attributes:
        authority: HOST:PORT for the `Host` header.
        prefix: The path of the URL, put in front of every path; for servers behind a proxy.
        tls: The context for TLS, or None for http.
        fields: The header lines of every request.
    """

    host: str
    port: int
    authority: str
    prefix: str
    tls: ssl.SSLContext | None
    fields: str


def make_target(
    url: str, token: str | None, ca: str | None, certificate: tuple[str, str] | None
) -> Target:
    """Return the target of an http or https URL.

    Args:
        token: The bearer token, or None.
        ca: A file (PEM) of the authorities to trust instead of the system's, or None.
        certificate: Files (PEM) of the client's certificate chain and key, or None.

    Raises:
        ValueError: The URL or the token is malformed.
        OSError: A file cannot be read.
    """
    parts = urlsplit(url)
    if not parts.hostname:
        raise ValueError(f"expected http://HOST:PORT, got {url!r}")
    if not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError(
            f"expected a URL of ASCII characters without blanks, got {url!r}; write others as %XX"
        )
    encrypted = parts.scheme == "https"
    authority = parts.netloc.rpartition("@")[2]
    fields = [f"Host: {authority}", "User-Agent: ksrv-client", "Accept: */*"]
    if token is not None:
        check_token(token)
        fields.append(f"Authorization: Bearer {token}")
    tls = None
    if encrypted:
        tls = ssl.create_default_context(cafile=ca)
        if certificate is not None:
            tls.load_cert_chain(*certificate)
    port = parts.port or (443 if encrypted else 80)
    prefix = parts.path.rstrip("/")
    return Target(parts.hostname, port, authority, prefix, tls, "\r\n".join(fields))


def head_of(target: Target, request: HttpRequest) -> bytes:
    """Return the head of a request."""
    lines = [f"{request.method} {target.prefix}{request.path} HTTP/1.1", target.fields]
    lines += [f"{name}: {value}" for name, value in request.headers]
    if request.method != "GET":
        lines.append(f"Content-Length: {sum(len(block) for block in request.blocks)}")
    return "\r\n".join([*lines, "\r\n"]).encode("ascii")


def pieces_of(target: Target, request: HttpRequest) -> list[Block]:
    """Return a request as pieces to send, with small pieces joined."""
    pieces: list[Block] = []
    small: list[Block] = [head_of(target, request)]
    size = len(small[0])
    for block in request.blocks:
        if size + len(block) > _JOINED_BYTES:
            pieces.append(b"".join(small))
            small, size = [], 0
            if len(block) > _JOINED_BYTES:
                step = _PROGRESS_BYTES if request.progress else len(block)
                pieces += (block[at : at + step] for at in range(0, len(block), step))
                continue
        small.append(block)
        size += len(block)
    return [piece for piece in (*pieces, b"".join(small)) if len(piece)]


def pieces_with_progress(request: HttpRequest, pieces: Sequence[Block]) -> Iterator[Block]:
    """Yield the pieces of a request, and call `progress` after each piece was sent.

    Args:
        pieces: The result of `pieces_of`.
    """
    if request.progress is None:
        yield from pieces
        return
    sent, total = 0, sum(map(len, pieces))
    for piece in pieces:
        yield piece
        sent += len(piece)
        request.progress(sent, total)


@dataclass(frozen=True)
class Head:
    """The head of a response.

    Attributes:
        headers: Values by name in lower case. If a name occurs several times, the last value.
    """

    status: int
    version: str
    headers: dict[str, str]

    @property
    def interim(self) -> bool:
        """Whether this is an interim response, after which the final response follows (RFC 9110 15.2)."""
        return 100 <= self.status < 200 and self.status != 101

    @property
    def chunked(self) -> bool:
        """Whether the body arrives in chunks."""
        return self.headers.get("transfer-encoding", "").lower().endswith("chunked")

    @property
    def length(self) -> int | None:
        """The bytes of the body. None if the body ends with the connection."""
        if self.status in (204, 304):
            return 0
        text = self.headers.get("content-length")
        if text is None:
            return None
        if not text.isascii() or not text.isdigit() or len(text) > _LENGTH_DIGITS:
            raise ConnectionFailed(
                f"the answer's Content-Length is {text[:40]!r}; expected at most {_LENGTH_DIGITS} "
                f"decimal digits"
            )
        return int(text)

    @property
    def keeps_open(self) -> bool:
        """Whether the connection can take another request."""
        closes = "close" in self.headers.get("connection", "").lower()
        bounded = self.chunked or self.length is not None
        return self.version == "HTTP/1.1" and not closes and bounded


def parse_head(content: bytes) -> Head:
    """Return the head of a response.

    Raises:
        ConnectionFailed: The bytes are not a head of HTTP/1.1.
    """
    first, *lines = content.decode("latin-1").rstrip("\r\n").split("\r\n")
    version, _, rest = first.partition(" ")
    status = rest[:3]
    if not version.startswith("HTTP/1.") or not _STATUS.fullmatch(status):
        raise ConnectionFailed(f"the server does not speak HTTP/1.1; it answered {first[:60]!r}")
    headers: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        name, value = name.strip().lower(), value.strip()
        if name == "content-length" and headers.get(name, value) != value:  # RFC 9112 6.3
            raise ConnectionFailed(
                f"the answer has two Content-Lengths: {headers[name][:40]!r} and {value[:40]!r}"
            )
        headers[name] = value
    return Head(int(status), version, headers)


class BrokenConnection(ConnectionFailed):
    """The connection ended before a byte of the answer arrived. The server may have run the request."""


def may_repeat(request: HttpRequest) -> bool:
    """Whether a request may be sent again after a kept connection broke: its method is idempotent.

    The server may have closed the connection before it read the request or after it acted on it, and
    the client cannot tell these apart (RFC 9110 9.2.2, RFC 9112 9.3.1).
    """
    return request.method == "GET"


def has_unread_bytes(descriptor: int) -> bool:
    """Whether a socket has received bytes or its end. An idle connection is then useless.

    This is checked before a request is sent, because later the client cannot know whether the server has read the
    request.
    """
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


def chunk_size(line: bytes) -> int:
    """Return the size that a chunk's first line announces.

    Raises:
        ConnectionFailed: The line has no valid size.
    """
    text = line.partition(b";")[0].strip()
    if not 0 < len(text) <= _CHUNK_DIGITS or not set(text) <= _HEX_DIGITS:  # int() takes -1 and 1_0
        raise ConnectionFailed(f"a chunk of the answer begins with {text[:40]!r}")
    return int(text, 16)


def failure_text(error: BaseException, target: Target) -> str:
    """Return the error text for a connection that failed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"the certificate of {target.authority} is not accepted: {error.verify_message}; "
            f"{NAMES_AN_AUTHORITY}"
        )
    if isinstance(error, ConnectionRefusedError):
        return f"no answer from {target.authority}: {NOTHING_LISTENS}"
    if isinstance(error, ssl.SSLError) and error.reason == "WRONG_VERSION_NUMBER":
        why = "it does not speak TLS; begin the URL with http:// and not https://"
        return f"no answer from {target.authority}: {why}"
    if isinstance(error, socket.gaierror):
        return f"no answer from {target.authority}: no host has this name ({error.strerror}); check the server's URL"
    return f"no answer from {target.authority}: {error}"


def unanswered_text(target: Target, received: bytes | bytearray) -> str:
    """Return the error text for a connection that was closed before an answer.

    Args:
        received: The bytes that arrived before it was closed.
    """
    text = f"{target.authority} closed the connection before it had answered"
    if received and not b"HTTP/".startswith(bytes(received[:5])):
        return (
            f"{text}; what it sent is not HTTP/1.1: give the address of HTTP and not that of gRPC"
        )
    return text


def failure(error: BaseException, target: Target) -> ConnectionFailed | DeadlineExceeded:
    """Return the error of a call whose connection failed."""
    if isinstance(error, TimeoutError):
        return DeadlineExceeded(f"no answer from {target.authority} in time")
    return ConnectionFailed(failure_text(error, target))
