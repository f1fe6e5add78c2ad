"""Tensors in the client's shared memory: the hook by which a dialect reads and writes them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from ksrv.errors import InvalidRequest
from ksrv.limits import Limits
from ksrv.request import Parameter, SharedMemoryRef, Tensor


class CallerMemory(Protocol):
    """The shared memory of a caller."""

    def read(
        self,
        tensors: Sequence[Tensor],
        refs: Mapping[int, SharedMemoryRef],
        *,
        takes_images: Callable[[str], bool],
        received: int,
        limits: Limits,
    ) -> int:
        """Fill inputs with their values in shared memory.

        Args:
            tensors: The inputs of a request.
            refs: The memory of the inputs to fill, by their indices.
            takes_images: Tells of an input whether a sole element of BYTES may come without its length prefix.
            received: The bytes of the request's body or message.
            limits: The limits, with the largest sum of all bytes.

        Returns:
            The bytes of the request together with its bytes in shared memory.

        Raises:
            KsrvError: The memory is unknown, or its size does not fit datatype and shape.
        """

    def write(self, ref: SharedMemoryRef, tensor: Tensor) -> dict[str, Parameter]:
        """Write an output, and return the parameters that name its region, offset and size.

        Raises:
            KsrvError: The memory is unknown, or the output does not fit.
        """


ControlUser = Callable[[], tuple[int, int] | None]
"""Returns the user and group at the other end of the caller's unix socket, or None; raises if it may make no control
calls."""


class SharedMemory(Protocol):
    """The shared memory of a server."""

    def of_caller(self, user: ControlUser) -> CallerMemory:
        """Return what a caller sees of it."""


def enabled(memory: CallerMemory | None, owner: str) -> CallerMemory:
    """Return the memory of a caller whose request names memory.

    Args:
        owner: The tensor that names it, for the error.

    Raises:
        InvalidRequest: Shared memory is off.
    """
    if memory is None:
        raise InvalidRequest(
            f"{owner}: shared memory is not enabled on this server (--allow-shared-memory)"
        )
    return memory
