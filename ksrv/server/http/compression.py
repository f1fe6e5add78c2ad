"""gzip and deflate: bodies that are inflated within their limits, and answers that are compressed."""

import zlib
from collections.abc import Iterable, Iterator

from ksrv.errors import BodyTooLarge, InvalidRequest, UnsupportedEncoding, quote
from ksrv.limits import MIB, Limits, show_limit
from ksrv.protocol.accept import accepted

COMPRESSED_STEP = 64 * 1024
"""Bytes of a compressed body that are read and inflated in one step."""

UNRATED_INFLATION = MIB
"""Inflated bytes below which the ratio is not checked, because a small body of zeros is not an attack."""

MEMBERS = 65_536
"""Most members of a gzip body: each takes 3 us and may have only 20 bytes. bgzip writes 16,384 for 1 GiB."""

_INFLATED_STEP = MIB
_GZIP_MAGIC = b"\x1f\x8b"
_WINDOW_BITS = {"gzip": 31, "x-gzip": 31, "deflate": 15}
"""The `wbits` of zlib: 31 for the gzip format, 15 for the zlib format, which HTTP calls deflate (RFC 9110 8.4.1.2)."""


def content_encoding(given: str, allowed: bool) -> str:
    """Return the encoding of a body, "identity" for none.

    Args:
        given: The `Content-Encoding` header, or "".
        allowed: Whether compressed bodies are taken.

    Raises:
        UnsupportedEncoding: The encoding is unknown or not allowed.
    """
    encoding = given.strip().lower() or "identity"
    if encoding == "identity":
        return encoding
    if encoding in _WINDOW_BITS and allowed:
        return encoding
    accepted = (
        "identity, gzip or deflate" if allowed else "identity only (setting 'decompress_requests')"
    )
    raise UnsupportedEncoding(
        f"Content-Encoding {quote(encoding)} is not supported; expected {accepted}"
    )


def inflated(pieces: Iterator[bytes], encoding: str, limits: Limits) -> Iterator[bytes]:
    """Yield the inflated content of a compressed body, a bounded piece at a time.

    Args:
        pieces: The body as it arrived; the ratio is checked after each piece.
        encoding: "gzip", "x-gzip" or "deflate".

    Raises:
        BodyTooLarge: It inflates to more than the ratio allows.
        InvalidRequest: It is corrupt, ends early, or continues after its end.
    """
    machine = zlib.decompressobj(_WINDOW_BITS[encoding])
    received = inflated = 0
    members = 1
    for piece in pieces:
        received += len(piece)
        rest = piece
        while rest:
            if machine.eof:
                # gzip may have several members (RFC 1952 2.2); the limits apply to all of them together.
                if encoding == "deflate" or not rest.startswith(_GZIP_MAGIC[: len(rest)]):
                    raise InvalidRequest(
                        f"the {encoding} body continues after the end of its stream"
                    )
                members += 1
                if members > MEMBERS:
                    raise InvalidRequest(
                        f"the {encoding} body has more than {MEMBERS} members; compress it as a whole"
                    )
                machine = zlib.decompressobj(_WINDOW_BITS[encoding])
            try:
                out = machine.decompress(rest, _INFLATED_STEP)
            except zlib.error as error:
                raise InvalidRequest(f"the {encoding} body is corrupt: {error}") from error
            rest = machine.unconsumed_tail or machine.unused_data
            inflated += len(out)
            allowed = max(UNRATED_INFLATION, received * limits.inflate_ratio)
            if inflated > allowed:
                raise BodyTooLarge(
                    f"the {encoding} body inflates above the "
                    f"{show_limit('inflate_ratio', limits.inflate_ratio)}: {received} bytes became "
                    f"{inflated}"
                )
            yield out
    if not machine.eof:
        raise InvalidRequest(f"the {encoding} body ends before its stream does")


def steps(body: bytes | memoryview) -> Iterator[bytes]:
    """Yield a compressed body in steps, because `inflated` checks the ratio after each step."""
    for start in range(0, len(body), COMPRESSED_STEP):
        yield bytes(body[start : start + COMPRESSED_STEP])


def compressed(pieces: Iterable[bytes | memoryview], encoding: str) -> Iterator[bytes]:
    """Yield an answer in compressed form.

    Args:
        encoding: "gzip" or "deflate".
    """
    machine = zlib.compressobj(1, zlib.DEFLATED, _WINDOW_BITS[encoding])
    for piece in pieces:
        out = machine.compress(piece)
        if out:
            yield out
    yield machine.flush()


def chosen_encoding(accept: str | None) -> str | None:
    """Return "gzip" or "deflate" if an `Accept-Encoding` header allows it, else None."""
    weights = dict(accepted(accept))
    offers = [(weights.get(name, weights.get("*", 0.0)), name) for name in ("gzip", "deflate")]
    weight, name = max(offers, key=lambda offer: offer[0])
    return name if weight > 0 else None
