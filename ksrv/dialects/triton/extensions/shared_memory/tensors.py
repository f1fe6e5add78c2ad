"""Reads and writes tensors in registered regions, for REST and gRPC.

Tensors are copied between a region and the server's memory, because the client can change a region at any time: no
tensor changes while a handler reads it, and a client that shrinks a region during a request only gets an error.
"""

from collections.abc import Callable, Mapping, Sequence

from ksrv._native.tensor import bytes_tensor
from ksrv.dialects.triton.extensions.shared_memory.regions import MemoryUser, Regions
from ksrv.errors import BodyTooLarge, Forbidden, InvalidRequest, KsrvError, quote
from ksrv.limits import Limits, show_limit
from ksrv.protocol.shared_memory import ControlUser
from ksrv.protocol.tensors import check_bool, measure, subject, tensor_bytes, view
from ksrv.request import Array, Element, Parameter, SharedMemoryRef, Tensor
from ksrv.server.credentials import Access
from ksrv.server.settings import ServerSettings, SettingsError


def check_settings(settings: ServerSettings, *, loopback: bool) -> None:
    """Refuse settings that do not allow shared memory.

    Args:
        loopback: Whether only this machine can reach the server.

    Raises:
        SettingsError: Strangers could use shared memory, or a region would be known to one of several workers.
    """
    if settings.workers > 1:
        raise SettingsError(
            "setting 'allow_shared_memory' needs 'workers' to be 1: a region is registered with one "
            "worker only"
        )
    if not loopback and settings.control_token_file is None:
        raise SettingsError(
            "setting 'allow_shared_memory' needs addresses on loopback only, or a "
            "'control_token_file'"
        )


class ServerMemory:
    """The regions of a server, and who may use them; see `ksrv.protocol.shared_memory.SharedMemory`.

    Args:
        access: The checks of callers.
    """

    def __init__(self, regions: Regions, access: Access) -> None:
        self.regions = regions
        self._access = access

    def of_caller(self, user: ControlUser) -> "CallerMemory":
        """See `ksrv.protocol.shared_memory.SharedMemory.of_caller`."""
        return CallerMemory(self.regions, lambda: self.memory_user(user()))

    def memory_user(self, user: tuple[int, int] | None) -> MemoryUser | None:
        """Return the user whose rights a caller has for shared memory.

        Args:
            user: The user and group at the other end of the caller's unix socket, or None.

        Returns:
            None for a caller with the control token, who has the server's rights.

        Raises:
            Forbidden: The caller has neither a token nor a known user.
        """
        if self._access.has_control_token:
            return None
        if user is None:
            raise Forbidden(
                "shared memory belongs to a user, and a call over TCP does not say which user makes it. Start the "
                "server with --control-token-file and send that token, or call it over a unix socket"
            )
        return MemoryUser(*user)


class CallerMemory:
    """The regions for one request. Its caller needs the same rights as for registering a region.

    Args:
        user: Returns the user whose rights the caller has, None for the server's rights; or raises Forbidden.
    """

    __slots__ = ("_regions", "_user")

    def __init__(self, regions: Regions, user: Callable[[], MemoryUser | None]) -> None:
        self._regions = regions
        self._user = user

    def read(
        self,
        tensors: Sequence[Tensor],
        refs: Mapping[int, SharedMemoryRef],
        *,
        takes_images: Callable[[str], bool],
        received: int,
        limits: Limits,
    ) -> int:
        """See `ksrv.protocol.shared_memory.CallerMemory.read`."""
        total = received + sum(ref.byte_size for ref in refs.values())
        if total > limits.body:
            raise BodyTooLarge(
                f"the request and its inputs in shared memory have {total} bytes, above the "
                f"{show_limit('body', limits.body)}"
            )
        for index, ref in refs.items():
            tensor = tensors[index]
            tensor.data = self._values(tensor, ref, index, takes_images(tensor.name), limits)
        return total

    def _values(
        self, tensor: Tensor, ref: SharedMemoryRef, index: int, is_image: bool, limits: Limits
    ) -> Array | list[Element]:
        name, datatype, shape = tensor.name, tensor.datatype, tensor.shape
        owner = subject(name, index)
        count, nbytes = measure(name, index, datatype, shape, limits)
        if datatype != "BYTES" and ref.byte_size != nbytes:
            raise InvalidRequest(
                f"input byte size mismatch for {owner}. Expected {nbytes} by datatype and shape, got "
                f"{ref.byte_size} as 'shared_memory_byte_size'"
            )
        try:
            received = self._regions.read(ref, self._user())
        except KsrvError as error:
            raise _named(owner, error) from None
        if datatype == "BYTES":
            try:
                # None: without a list of sizes, each element in the region has its length before it.
                return bytes_tensor.read(received, count, None, is_image, name)
            except bytes_tensor.ElementsError as error:
                raise InvalidRequest(str(error)) from None
        values = view(received, 0, datatype, shape, count)
        if datatype == "BOOL":
            check_bool(name, index, values)
        return values

    def write(self, ref: SharedMemoryRef, tensor: Tensor) -> dict[str, Parameter]:
        """See `ksrv.protocol.shared_memory.CallerMemory.write`."""
        owner = f"output {quote(tensor.name)}"
        data = tensor_bytes(tensor)
        if len(data) > ref.byte_size:
            raise InvalidRequest(
                f"{owner}: shared memory size specified with the request ({ref.byte_size} bytes) "
                f"should be at least {len(data)} bytes to hold the results"
            )
        try:
            self._regions.write(ref, data, self._user())
        except KsrvError as error:
            raise _named(owner, error) from None
        return {
            "shared_memory_region": ref.region,
            "shared_memory_offset": ref.offset,
            "shared_memory_byte_size": len(data),
        }


def _named(owner: str, error: KsrvError) -> KsrvError:
    return type(error)(f"{owner}: {error.message}")
