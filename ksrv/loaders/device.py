"""Makes torch's device object from the name of a device."""

from typing import Any


def torch_device(name: str) -> Any:
    """Return the `torch.device` for a name.

    Args:
        name: "cpu", "cuda:N", "xpu:N", "mps" or "xla".
    """
    if name == "xla":
        import torch_xla

        return torch_xla.device()
    import torch

    return torch.device(name)
