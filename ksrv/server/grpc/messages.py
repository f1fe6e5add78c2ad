"""Received gRPC messages: counted in the bytes in flight, and inflated within the limits.

grpcio's core would inflate a compressed message before ksrv sees it, without a bound on
the ratio, so its inflating is switched off (`grpc.per_message_decompression`). grpcio then does not report which
messages are compressed, but their first bytes do: no protobuf message begins with the first bytes of
gzip (wire type 7 does not exist), and a message that begins with the first bytes of zlib has field 15 first, which no
message here has. Messages that cannot be inflated are taken as they are.
"""

from ksrv._native.memory.memory_budget import MemoryBudget
from ksrv.errors import BodyTooLarge, InvalidRequest
from ksrv.limits import Limits, show_limit
from ksrv.server.http.byte_budget import Reservation
from ksrv.server.http.compression import COMPRESSED_STEP, inflated

_GZIP = b"\x1f\x8b\x08"
_ZLIB = b"\x78"
"""The first byte of zlib's streams with the usual window; with the second a multiple of 31."""


def encoding_of(message: bytes) -> str | None:
    """Return how a message is compressed: "gzip", "deflate", or None for not at all."""
    if message.startswith(_GZIP):
        return "gzip"
    if message.startswith(_ZLIB) and not int.from_bytes(message[:2], "big") % 31:
        return "deflate"
    return None


def admitted(message: bytes, limits: Limits, budget: MemoryBudget) -> tuple[bytes, Reservation]:
    """Return a message as the client wrote it, and the bytes that it holds in the budget.

    Args:
        message: The message as it was received, compressed or not.
        limits: Bounds on its size and its ratio.
        budget: The bytes that requests may hold together.

    Raises:
        BodyTooLarge: It is, or inflates to, more than the limits allow.
        InvalidRequest: It is corrupt.
        Overloaded: The bytes in flight are at their bound.
    """
    reservation = Reservation(budget)
    try:
        reservation.grow(len(message))
        return as_written(message, limits, reservation), reservation
    except BaseException:
        reservation.close()
        raise


def as_written(message: bytes, limits: Limits, reservation: Reservation) -> bytes:
    """Return a message as the client wrote it.

    Args:
        message: The message as it was received, compressed or not; the reservation has it already.
        limits: Bounds on its size and its ratio.
        reservation: Takes what it inflates to as well.

    Raises:
        BodyTooLarge: It is, or inflates to, more than the limits allow.
        InvalidRequest: It is corrupt.
        Overloaded: The bytes in flight are at their bound.
    """
    if len(message) > limits.body:
        raise BodyTooLarge(
            f"the message has {len(message)} bytes, above the {show_limit('body', limits.body)}"
        )
    encoding = encoding_of(message)
    if encoding is None:
        return message
    try:
        return inflated_message(message, encoding, limits, reservation)
    except InvalidRequest:
        if encoding == "gzip":
            raise
        return message


def inflated_message(
    message: bytes | memoryview, encoding: str, limits: Limits, reservation: Reservation
) -> bytes:
    """Return what a compressed message inflates to.

    Args:
        encoding: "gzip" or "deflate".
        limits: Bounds on its size and its ratio.

    Raises:
        BodyTooLarge: It inflates to more than the limits allow.
        InvalidRequest: It is corrupt.
        Overloaded: The bytes in flight are at their bound.
    """
    steps = (
        bytes(message[start : start + COMPRESSED_STEP])
        for start in range(0, len(message), COMPRESSED_STEP)
    )
    whole = bytearray()
    for piece in inflated(steps, encoding, limits):
        if len(whole) + len(piece) > limits.body:
            raise BodyTooLarge(
                f"the {encoding} message inflates to more bytes than the "
                f"{show_limit('body', limits.body)}"
            )
        reservation.grow(2 * len(piece))  # it is copied once it is whole
        whole += piece
    return bytes(whole)
