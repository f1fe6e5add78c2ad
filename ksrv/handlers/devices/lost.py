"""Recognizes errors after which this process cannot use a device any more, and keeps the names of such devices."""

from ksrv.torch_interop import imported_torch

# Values of cudaError_t after which every further call in the process fails, because its CUDA context is unusable:
# hardware that is lost, unavailable or defective, and kernels with invalid memory accesses.
_CODES = frozenset(
    {4, 46, 100, 101, 214, 220, 226, 700, 701, 702, 709, 710}
    | {714, 715, 716, 717, 718, 719, 720, 721, 802, 999}
)

_lost: list[str] = []


def is_lost(error: BaseException) -> bool:
    """Tell whether an error means that the device can no longer be used in this process."""
    torch = imported_torch()
    kind = getattr(torch, "AcceleratorError", None)
    return kind is not None and isinstance(error, kind) and _code(error) in _CODES


def note_lost(name: str) -> None:
    """Note that a device can no longer be used. The worker then asks to be replaced."""
    if name not in _lost:
        _lost.append(name)


def lost_devices() -> tuple[str, ...]:
    """Return the names of the devices that can no longer be used in this process."""
    return tuple(_lost)


def _code(error: BaseException) -> int | None:
    code = getattr(error, "error_code", None)
    return code if isinstance(code, int) else None
