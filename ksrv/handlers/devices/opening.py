"""Opens the device that an instance computes on."""

from ksrv.handlers.devices.device import Device


def open_device(name: str) -> Device:
    """Return the interface of an instance to a device.

    Args:
        name: "cuda:N", "xpu:N", "mps", "xla" or "cpu".
    """
    if name.startswith("cuda"):
        from ksrv.handlers.devices.cuda import CudaDevice

        return CudaDevice(name)
    return Device(name)
