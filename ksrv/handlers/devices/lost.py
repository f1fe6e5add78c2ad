"""Devices that this process cannot use any more, and how to recognize their errors."""

from ksrv.torch_interop import imported_torch

# CUDA's: the process's context is gone, and every further call in it fails. Hardware that is lost, unavailable
# or defective, and kernels that touched what is not theirs.
_CODES = frozenset(
    {4, 46, 100, 101, 214, 220, 226, 700, 701, 702, 709, 710}
    | {714, 715, 716, 717, 718, 719, 720, 721, 802, 999}
)

_lost: list[str] = []


def is_lost(error: BaseException) -> bool:
    """Whether an error says that its device works no more in this process."""
    torch = imported_torch()
    kind = getattr(torch, "AcceleratorError", None)
    return kind is not None and isinstance(error, kind) and _code(error) in _CODES


def note_lost(name: str) -> None:
    """Note that a device works no more; the worker then has itself replaced."""
    if name not in _lost:
        _lost.append(name)


def lost_devices() -> tuple[str, ...]:
    """Return the devices that work no more in this process."""
    return tuple(_lost)


def _code(error: BaseException) -> int | None:
    code = getattr(error, "error_code", None)
    return code if isinstance(code, int) else None
