"""Counts received gRPC messages in the memory budget, and inflates compressed messages within the limits.

`admitted` is for grpcio; the native server uses `inflated_message` only, because it counts the bytes as they arrive.

grpcio would inflate a compressed message without a bound on the ratio, before ksrv sees it, so this is switched off
(`grpc.per_message_decompression`). grpcio then does not report which messages are compressed. ksrv recognises them by
their first bytes: no protobuf message begins with the first bytes of gzip (wire type 7 does not exist), and a message
that begins with the first bytes of zlib would have field 15 first, which no message here has. A message that looks like
zlib but cannot be inflated is taken as it is.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from ksrv._native.memory.memory_budget import MemoryBudget
from ksrv.errors import BodyTooLarge, InvalidRequest
from ksrv.limits import Limits, show_limit
from ksrv.server.http.body import Bound, one_block
from ksrv.server.http.byte_budget import Reservation
from ksrv.server.http.compression import inflated, steps

_GZIP = b"\x1f\x8b\x08"
_ZLIB = b"\x78"
"""The first byte of a zlib stream with the usual window. The first two bytes are a multiple of 31 (RFC 1950 2.2)."""


def encoding_of(message: bytes) -> str | None:
    """Return how a message is compressed: "gzip", "deflate", or None for not at all."""
    if message.startswith(_GZIP):
        return "gzip"
    if message.startswith(_ZLIB) and not int.from_bytes(message[:2], "big") % 31:
        return "deflate"
    return None


@contextmanager
def admitted(message: bytes, limits: Limits, budget: MemoryBudget) -> Iterator[bytes | memoryview]:
    """Yield a message as the client wrote it. The end of the context returns its bytes to the budget.

    Args:
        message: The message as it was received, compressed or not.
        limits: Bounds on the size and on the ratio of the sizes.
        budget: The memory budget.

    Raises:
        BodyTooLarge: The message, or the inflated message, is larger than the limits allow.
        InvalidRequest: The gzip data is corrupt.
        Overloaded: The memory budget is full.
    """
    with Reservation(budget) as reservation:
        reservation.grow(len(message))
        if len(message) > limits.body:
            raise BodyTooLarge(
                f"the message has {len(message)} bytes, above the {show_limit('body', limits.body)}"
            )
        encoding = encoding_of(message)
        written: bytes | memoryview = message
        if encoding is not None:
            try:
                written = inflated_message(message, encoding, limits, reservation)
            except InvalidRequest:
                if encoding == "gzip":
                    raise
        yield written


def inflated_message(
    message: bytes | memoryview, encoding: str, limits: Limits, reservation: Reservation
) -> memoryview:
    """Return a compressed message inflated.

    Args:
        encoding: "gzip" or "deflate".
        limits: Bounds on the size and on the ratio of the sizes.
        reservation: Counts the inflated bytes in the memory budget.

    Raises:
        BodyTooLarge: The inflated message is larger than the limits allow.
        InvalidRequest: The data is corrupt.
        Overloaded: The memory budget is full.
    """

    def refusal(size: int, most: int) -> BodyTooLarge:
        return BodyTooLarge(
            f"the {encoding} message inflates to more bytes than the {show_limit('body', most)}"
        )

    pieces = inflated(steps(message), encoding, limits)
    return one_block(pieces, Bound(limits.body, refusal), reservation)
