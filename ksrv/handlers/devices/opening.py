"""Opens the device that an instance computes on."""

from ksrv.handlers.devices.device import Device


def open_device(name: str) -> Device:
    """Return the device object of an instance. Devices other than CUDA need no class of their kind: `Device` serves them.

    Args:
        name: "cuda:N", "xpu:N", "mps", "xla" or "cpu".
    """
    if name.startswith("cuda"):
        # Imported only for CUDA, because the module is large and needs torch.
        from ksrv.handlers.devices.cuda import CudaDevice

        return CudaDevice(name)
    return Device(name)
