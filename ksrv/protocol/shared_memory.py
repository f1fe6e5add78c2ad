"""Tensors in the client's shared memory: the rules that REST and gRPC share.

A region is copied into the server's memory and written from it, and never mapped: a client that shrinks a region
during a request gets an error, and no tensor changes while a handler reads it.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from ksrv._native.tensor import bytes_tensor
from ksrv.errors import BodyTooLarge, HandlerFailed, InvalidRequest, KsrvError, quote
from ksrv.limits import Limits, show_limit
from ksrv.protocol.tensors import check_bool, measure, subject, tensor_bytes, view
from ksrv.request import Array, Element, Parameter, SharedMemoryRef, Tensor

DISABLED = "shared memory is not enabled on this server (--allow-shared-memory)"


class SharedMemoryRegistry(Protocol):
    """Reads and writes the parts of regions that references name: for the server, or with the permissions of a caller.

    A Protocol, because the classes are in `ksrv.server.memory_regions`, which this package does not import.
    """

    def read(self, ref: SharedMemoryRef) -> memoryview:
        """Return a copy of the bytes of a reference."""

    def write(self, ref: SharedMemoryRef, parts: Iterable[bytes | memoryview]) -> None:
        """Write parts one after the other from the beginning of a reference."""


def check_total(received: int, refs: Iterable[SharedMemoryRef], limits: Limits) -> int:
    """Return the bytes of a request together with those in shared memory.

    Args:
        received: The bytes of the request's body or message.
        refs: The shared memory of its inputs.
        limits: The limits, with the largest sum.

    Raises:
        BodyTooLarge: The sum is larger than a body may be.
    """
    total = received + sum(ref.byte_size for ref in refs)
    if total > limits.body:
        raise BodyTooLarge(
            f"the request and its inputs in shared memory have {total} bytes, above the "
            f"{show_limit('body', limits.body)}"
        )
    return total


def _named(owner: str, error: KsrvError) -> KsrvError:
    return type(error)(f"{owner}: {error.message}")


def read_tensor(
    regions: SharedMemoryRegistry | None,
    ref: SharedMemoryRef,
    *,
    name: str,
    index: int,
    datatype: str,
    shape: Sequence[int],
    is_image: bool,
    limits: Limits,
) -> Array | list[Element]:
    """Return the values of an input in shared memory.

    Args:
        regions: The registered regions; None if shared memory is off.
        ref: The input's part of a region.
        datatype: The datatype of its bytes; BYTES elements have length prefixes.
        is_image: Whether a sole element may come without its prefix.

    Raises:
        KsrvError: The region is unknown, or the size does not fit datatype and shape.
    """
    owner = subject(name, index)
    if regions is None:
        raise InvalidRequest(f"{owner}: {DISABLED}")
    count, nbytes = measure(name, index, datatype, shape, limits)
    if datatype != "BYTES" and ref.byte_size != nbytes:
        raise InvalidRequest(
            f"input byte size mismatch for {owner}. Expected {nbytes} by datatype and shape, got "
            f"{ref.byte_size} as 'shared_memory_byte_size'"
        )
    try:
        received = regions.read(ref)
    except KsrvError as error:
        raise _named(owner, error) from None
    if datatype == "BYTES":
        try:
            return bytes_tensor.read(received, count, None, is_image, name)
        except bytes_tensor.ElementsError as error:
            raise InvalidRequest(str(error)) from None
    values = view(received, 0, datatype, shape, count)
    if datatype == "BOOL":
        check_bool(name, index, values)
    return values


def write_tensor(
    regions: SharedMemoryRegistry | None, ref: SharedMemoryRef, tensor: Tensor
) -> dict[str, Parameter]:
    """Write an output into shared memory.

    Args:
        ref: The part of a region to write to.

    Returns:
        The parameters with which the answer names that part.

    Raises:
        KsrvError: The region is unknown, or the output does not fit.
    """
    owner = f"output {quote(tensor.name)}"
    if regions is None:
        raise HandlerFailed(f"{owner}: {DISABLED}")
    data = tensor_bytes(tensor)
    if len(data) > ref.byte_size:
        raise InvalidRequest(
            f"{owner}: shared memory size specified with the request ({ref.byte_size} bytes) "
            f"should be at least {len(data)} bytes to hold the results"
        )
    try:
        regions.write(ref, [data])
    except KsrvError as error:
        raise _named(owner, error) from None
    return {
        "shared_memory_region": ref.region,
        "shared_memory_offset": ref.offset,
        "shared_memory_byte_size": len(data),
    }
