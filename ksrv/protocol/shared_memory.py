"""The interface for tensors in a client's shared memory.

The parsers read inputs and write outputs by a `CallerMemory`. The Triton dialect implements it
(`ksrv/dialects/triton/extensions/`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from ksrv.errors import InvalidRequest
from ksrv.limits import Limits
from ksrv.request import Parameter, SharedMemoryRef, Tensor


class CallerMemory(Protocol):
    """The regions of shared memory that a caller may use."""

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
            takes_images: Returns whether a single BYTES element of an input may lack the length prefix.
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
        """Return the shared memory that a caller may use."""


def enabled(memory: CallerMemory | None, owner: str) -> CallerMemory:
    """Return the memory of a caller whose request names shared memory.

    Args:
        memory: The caller's memory; None if shared memory is off.
        owner: The tensor that names the memory, for the error.

    Raises:
        InvalidRequest: Shared memory is off.
    """
    if memory is None:
        raise InvalidRequest(
            f"{owner}: shared memory is not enabled on this server (--allow-shared-memory)"
        )
    return memory
