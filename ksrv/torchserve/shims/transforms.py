"""Image transforms with torchvision's names and numbers, for workers that have no torchvision.

They take an array [height, width] or [height, width, channels] of uint8, whose resize is Pillow's
antialiased bilinear filter, bit for bit, from `ksrv._native.images.convert_pixels`; Pillow itself is not needed. A
Pillow image is resized and cropped by its own methods, as torchvision does, and stays one.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from ksrv.images.geometry import center_offset, shorter_side_size

Pixels = npt.NDArray[np.uint8]


def pixels_of(image: Any) -> Pixels:
    """Return an image's pixels as uint8 [height, width, channels].

    Raises:
        TypeError: It is neither a picture nor an array of uint8.
    """
    array = np.asarray(image)
    if array.dtype == np.bool_:
        array = array.astype(np.uint8) * 255
    if array.dtype != np.uint8 or array.ndim not in (2, 3):
        raise TypeError(
            f"an image is uint8 [height, width] or [height, width, channels],"
            f" not {array.dtype} {list(array.shape)}"
        )
    return np.ascontiguousarray(array.reshape(*array.shape[:2], -1))


class InterpolationMode(Enum):
    """The names of filters; `Resize` has the bilinear one."""

    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"


PILLOW_BILINEAR = 2


def _is_pillow(image: Any) -> bool:
    return hasattr(image, "crop") and hasattr(image, "resize") and hasattr(image, "mode")


class Compose:
    """Applies transforms one after the other.

    Args:
        transforms: Callables that take and give an image or a tensor.
    """

    def __init__(self, transforms: Sequence[Callable[[Any], Any]]) -> None:
        self.transforms = list(transforms)

    def __call__(self, image: Any) -> Any:
        for transform in self.transforms:
            image = transform(image)
        return image


class Resize:
    """Resizes with antialiasing.

    Args:
        size: The length of the shorter edge, or (height, width).
        interpolation: The filter; only the bilinear one is here.
        max_size: Bounds the longer edge; not offered here.

    Raises:
        ValueError: An argument is not supported.
    """

    def __init__(
        self,
        size: int | Sequence[int],
        interpolation: Any = InterpolationMode.BILINEAR,
        max_size: int | None = None,
        antialias: bool | str | None = True,
    ) -> None:
        if interpolation not in (InterpolationMode.BILINEAR, PILLOW_BILINEAR):
            raise ValueError(
                f"ksrv's stand-in for torchvision resizes bilinearly, not with {interpolation!r}:"
                " pip install torchvision"
            )
        if max_size is not None:
            raise ValueError(
                "ksrv's stand-in for torchvision has no max_size: pip install torchvision"
            )
        self.size = size

    def __call__(self, image: Any) -> Any:
        from ksrv._native.images.row_resize import resize_pillow

        if _is_pillow(image):
            height, width = self.target(image.size[1], image.size[0])
            return image.resize((width, height), PILLOW_BILINEAR)
        pixels = pixels_of(image)
        height, width = self.target(pixels.shape[0], pixels.shape[1])
        if (height, width) == pixels.shape[:2]:
            return pixels
        return resize_pillow(pixels, height, width)

    def target(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width that an image of this size gets."""
        if not isinstance(self.size, int) and len(self.size) == 2:
            return self.size[0], self.size[1]
        edge = self.size if isinstance(self.size, int) else self.size[0]
        return shorter_side_size((height, width), edge)


class CenterCrop:
    """Cuts the middle out; an image that is too small is padded with zeros first.

    Args:
        size: The edge of a square, or (height, width).
    """

    def __init__(self, size: int | Sequence[int]) -> None:
        self.height, self.width = (size, size) if isinstance(size, int) else (size[0], size[-1])

    def __call__(self, image: Any) -> Any:
        if _is_pillow(image):
            width, height = image.size
            if width >= self.width and height >= self.height:
                top, left = center_offset((height, width), (self.height, self.width))
                return image.crop((left, top, left + self.width, top + self.height))
        pixels = pixels_of(image)
        missing = (max(self.height - pixels.shape[0], 0), max(self.width - pixels.shape[1], 0))
        if any(missing):
            pads = [(edge // 2, (edge + 1) // 2) for edge in missing]
            pixels = np.pad(pixels, [*pads, (0, 0)])
        top, left = center_offset(pixels.shape[:2], (self.height, self.width))
        return np.ascontiguousarray(pixels[top : top + self.height, left : left + self.width])


class ToTensor:
    """Turns pixels into a float32 tensor [channels, height, width] from 0 to 1.

    Other arrays keep their numbers.
    """

    def __call__(self, image: Any) -> Any:
        import torch

        if isinstance(image, np.ndarray) and image.dtype != np.uint8:
            array = image.reshape(*image.shape[:2], -1)
            return torch.from_numpy(array.copy()).permute(2, 0, 1).contiguous()
        tensor = torch.from_numpy(pixels_of(image).copy()).permute(2, 0, 1).contiguous()
        return tensor.to(torch.float32).div(255)


class Normalize:
    """Subtracts the mean and divides by the standard deviation, channel by channel."""

    def __init__(self, mean: Sequence[float], std: Sequence[float], inplace: bool = False) -> None:
        self.mean, self.std, self.inplace = mean, std, inplace

    def __call__(self, tensor: Any) -> Any:
        import torch

        if not self.inplace:
            tensor = tensor.clone()
        mean = torch.as_tensor(self.mean, dtype=tensor.dtype, device=tensor.device)
        std = torch.as_tensor(self.std, dtype=tensor.dtype, device=tensor.device)
        if (std == 0).any():
            raise ValueError("a standard deviation of zero would divide by zero")
        return tensor.sub_(mean[:, None, None]).div_(std[:, None, None])
