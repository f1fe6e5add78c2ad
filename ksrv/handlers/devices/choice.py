"""Chooses the device of a handler: the device that model.yaml names, or for `auto` the best available device.

The order of `auto` is CUDA, XPU, MPS, XLA, CPU. torch knows the devices; it is imported only when a device has to be
chosen. Without torch, the CPU is used. The device of an ONNX model depends on the providers of ONNX Runtime, not on
torch.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ksrv.model.fault import ConfigError

ORDER = ("cuda", "xpu", "mps", "xla", "cpu")


def choose_device(wanted: str, instance: int = 0) -> str:
    """Return the name of the device for one instance of a model.

    Args:
        wanted: "auto", or a device's name, without a number, with one, or with several: "cuda:0,2".
        instance: The number of the instance, to spread instances over several devices. If `wanted` has numbers, this
            counts the instances of the model, otherwise the instances of all models.

    Returns:
        "cuda:N", "xpu:N", "mps", "xla" or "cpu".

    Raises:
        ConfigError: The named device is not available.
    """
    if wanted == "cpu":
        return "cpu"
    torch = _torch()
    if wanted == "auto":
        if torch is None:
            return "cpu"
        kind = next(kind for kind in ORDER if count(torch, kind))
        return _name(kind, instance % count(torch, kind))
    kind, _, number = wanted.partition(":")
    if torch is None:
        raise ConfigError(f"device {wanted} needs torch: pip install torch")
    there = count(torch, kind)
    if not there:
        raise ConfigError(
            f"device {wanted} is not available on this machine; `device: auto` takes what is there, and `ksrv doctor` "
            f"shows it"
        )
    numbers = [int(part) for part in number.split(",")] if number else range(there)
    if max(numbers) >= there:
        raise ConfigError(
            f"device {wanted} is not available; this machine has {there} {kind} device(s)"
        )
    return _name(kind, numbers[instance % len(numbers)])


def choose_onnx_device(wanted: str, instance: int = 0) -> str:
    """Return the name of the device for one instance of an ONNX model.

    Args:
        wanted: "auto", or a device's name, with or without a number.
        instance: The number of the instance, to spread instances over several GPUs.

    Returns:
        "cuda:N" or "cpu" for "auto"; any other name as it is, for the loader to accept or refuse.
    """
    gpus = nvidia_gpus()
    if wanted == "auto":
        return f"cuda:{instance % gpus}" if gpus and _onnx_has_cuda() else "cpu"
    if wanted == "cuda":
        return f"cuda:{instance % max(gpus, 1)}"
    kind, _, number = wanted.partition(":")
    numbers = number.split(",")
    return f"{kind}:{numbers[instance % len(numbers)]}" if number else wanted


def nvidia_gpus() -> int:
    """Return how many GPUs Nvidia's driver has."""
    folder = Path("/proc/driver/nvidia/gpus")
    return len(list(folder.iterdir())) if folder.is_dir() else 0


def _onnx_has_cuda() -> bool:
    try:
        import onnxruntime
    except ModuleNotFoundError:
        return False  # the loader says which extra is missing
    return "CUDAExecutionProvider" in onnxruntime.get_available_providers()


def count(torch: Any, kind: str) -> int:
    """Return how many devices of a kind torch can use.

    Args:
        kind: One of `ORDER`.
    """
    if kind == "cpu":
        return 1
    if kind == "mps":
        return int(torch.backends.mps.is_available())
    if kind == "xla":
        return int(find_spec("torch_xla") is not None)
    backend = getattr(torch, kind, None)
    return backend.device_count() if backend is not None and backend.is_available() else 0


def _torch() -> Any:
    try:
        import torch
    except ModuleNotFoundError:
        return None
    return torch


def _name(kind: str, index: int) -> str:
    return f"{kind}:{index}" if kind in ("cuda", "xpu") else kind
