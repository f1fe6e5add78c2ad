"""Image transforms with torchvision's names and results, for processes without torchvision.

They take a Pillow image, and return a Pillow image; or an array [height, width] or [height, width, channels] of uint8.
`ksrv._native.images.row_resize` resizes arrays as Pillow's antialiased bilinear filter does, bit for bit, so Pillow is
not needed. If these transforms cannot do exactly as torchvision does, such as resizing a tensor, they raise a TypeError
or a ValueError that names torchvision.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from ksrv.images.geometry import center_offset, shorter_side_size

Pixels = npt.NDArray[np.uint8]


def pixels_of(image: Any) -> Pixels:
    """Return an array's pixels as uint8 [height, width, channels].

    Raises:
        TypeError: The image is not an array of uint8 in 2 or 3 dimensions.
    """
    if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.ndim not in (2, 3):
        raise TypeError(
            "ksrv's stand-in for torchvision takes Pillow images, and arrays of uint8 [height, width] or [height, width,"
            f" channels], not {_described(image)}: pip install torchvision"
        )
    return np.ascontiguousarray(image.reshape(*image.shape[:2], -1))


def _described(value: Any) -> str:
    kind = type(value).__name__
    return f"{kind} of {value.dtype} {list(value.shape)}" if hasattr(value, "shape") else kind


class InterpolationMode(Enum):
    """The names of filters. `Resize` has only the bilinear filter."""

    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"


PILLOW_BILINEAR = 2
"""`PIL.Image.BILINEAR`."""


def _is_pillow(image: Any) -> bool:
    return hasattr(image, "crop") and hasattr(image, "resize") and hasattr(image, "mode")


class Compose:
    """Applies transforms one after the other.

    Args:
        transforms: Callables that take and return an image or a tensor.
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
        interpolation: The filter, which must be bilinear.
        max_size: torchvision's bound of the longer edge; must be None.
        antialias: Ignored: the filter is always antialiased.

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
        if not isinstance(size, int) and len(size) not in (1, 2):
            raise ValueError(f"Resize takes one or two sizes, not {list(size)}")
        self.size = size

    def __call__(self, image: Any) -> Any:
        from ksrv._native.images.convert_pixels import Conversion
        from ksrv._native.images.row_resize import resize_rows

        if _is_pillow(image):
            height, width = self.target(image.size[1], image.size[0])
            return image.resize((width, height), PILLOW_BILINEAR)
        pixels = pixels_of(image)
        height, width = self.target(pixels.shape[0], pixels.shape[1])
        if (height, width) == pixels.shape[:2]:
            return pixels
        resized = np.empty((height, width, *pixels.shape[2:]), np.uint8)
        resize_rows(pixels, resized, Conversion(), (height, width), kind="pillow")
        return resized

    def target(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width to which an image of this size is resized."""
        if not isinstance(self.size, int) and len(self.size) == 2:
            return self.size[0], self.size[1]
        edge = self.size if isinstance(self.size, int) else self.size[0]
        return shorter_side_size((height, width), edge)


class CenterCrop:
    """Cuts out the middle of an image. An image that is too small is padded with zeros first.

    Args:
        size: The edge of a square, or (height, width).
    """

    def __init__(self, size: int | Sequence[int]) -> None:
        self.height, self.width = (size, size) if isinstance(size, int) else (size[0], size[-1])

    def __call__(self, image: Any) -> Any:
        if _is_pillow(image):
            width, height = image.size
            padded = (max(height, self.height), max(width, self.width))
            top, left = center_offset(padded, (self.height, self.width))
            # Pillow fills what a crop has beyond the image with zeros.
            top -= (padded[0] - height) // 2
            left -= (padded[1] - width) // 2
            return image.crop((left, top, left + self.width, top + self.height))
        pixels = pixels_of(image)
        missing = (max(self.height - pixels.shape[0], 0), max(self.width - pixels.shape[1], 0))
        if any(missing):
            pads = [(edge // 2, (edge + 1) // 2) for edge in missing]
            pixels = np.pad(pixels, [*pads, (0, 0)])
        top, left = center_offset(pixels.shape[:2], (self.height, self.width))
        return np.ascontiguousarray(pixels[top : top + self.height, left : left + self.width])


class ToTensor:
    """Turns pixels into a tensor [channels, height, width] of torch's default dtype, with values from 0 to 1.

    Arrays of other datatypes than uint8 keep their datatype and values.
    """

    def __call__(self, image: Any) -> Any:
        import torch

        if isinstance(image, np.ndarray) and image.dtype != np.uint8 and image.ndim in (2, 3):
            array = image.reshape(*image.shape[:2], -1)
            return torch.from_numpy(array.copy()).permute(2, 0, 1).contiguous()
        pixels = pixels_of(_array_of(image) if _is_pillow(image) else image)
        tensor = torch.from_numpy(pixels.copy()).permute(2, 0, 1).contiguous()
        return tensor.to(torch.get_default_dtype()).div(255)


def _array_of(image: Any) -> Pixels:
    array = np.asarray(image)
    if array.dtype == np.bool_:
        array = array.astype(np.uint8) * 255
    return array


class Normalize:
    """Subtracts the mean and divides by the standard deviation, channel by channel.

    Raises:
        TypeError: The image is not a tensor of floats.
        ValueError: The tensor has fewer than three dimensions, or a standard deviation is zero.
    """

    def __init__(
        self, mean: float | Sequence[float], std: float | Sequence[float], inplace: bool = False
    ) -> None:
        self.mean, self.std, self.inplace = mean, std, inplace

    def __call__(self, tensor: Any) -> Any:
        import torch

        if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
            raise TypeError(
                f"Normalize takes a tensor of floats, not {_described(tensor)}; put ToTensor() before it"
            )
        if tensor.ndim < 3:
            raise ValueError(
                f"Normalize takes a tensor [..., channels, height, width], not {list(tensor.shape)}"
            )
        if not self.inplace:
            tensor = tensor.clone()
        mean = torch.as_tensor(self.mean, dtype=tensor.dtype, device=tensor.device)
        std = torch.as_tensor(self.std, dtype=tensor.dtype, device=tensor.device)
        if (std == 0).any():
            raise ValueError("a standard deviation of zero would divide by zero")
        return tensor.sub_(mean.reshape(-1, 1, 1)).div_(std.reshape(-1, 1, 1))
