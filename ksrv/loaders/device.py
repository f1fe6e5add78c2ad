"""torch's own device object for a device's name."""

from typing import Any


def torch_device(name: str) -> Any:
    """Return torch's device for a name.

    Args:
        name: "cpu", "cuda:N", "xpu:N", "mps" or "xla".
    """
    if name == "xla":
        import torch_xla

        return torch_xla.device()
    import torch

    return torch.device(name)
