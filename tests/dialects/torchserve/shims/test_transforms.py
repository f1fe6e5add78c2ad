"""The stand-in for torchvision's transforms: exact, or an error that names torchvision."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from ksrv.dialects.torchserve.shims.transforms import CenterCrop, Normalize, Resize, ToTensor


def picture(mode, width=7, height=5):
    rng = np.random.default_rng(1)
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)).convert(mode)


@pytest.mark.parametrize(
    "image",
    [
        torch.zeros(3, 8, 8, dtype=torch.uint8),
        torch.zeros(3, 8, 8),
        np.zeros((8, 8, 3), np.float32),
        np.zeros((1, 8, 8, 3), np.uint8),
        "picture.jpg",
    ],
    ids=["bytes tensor", "float tensor", "float array", "batch", "name"],
)
@pytest.mark.parametrize("transform", [Resize(4), CenterCrop(4)], ids=["Resize", "CenterCrop"])
def test_image_that_cannot_be_transformed_exactly_names_torchvision(transform, image):
    with pytest.raises(TypeError, match="pip install torchvision"):
        transform(image)


@pytest.mark.parametrize("image", [torch.zeros(3, 4, 4), Image.new("I;16", (4, 4)), "picture.jpg"])
def test_to_tensor_of_another_kind_names_torchvision(image):
    with pytest.raises(TypeError, match="pip install torchvision"):
        ToTensor()(image)


@pytest.mark.parametrize("mode", ["RGB", "L", "P", "RGBA", "1"])
@pytest.mark.parametrize("size", [(9, 10), (3, 12), (9, 2), (3, 3), (5, 7), (4, 6)])
def test_center_crop_of_a_pillow_image_pads_and_keeps_its_mode(mode, size):
    image = picture(mode)
    height, width = size
    missing_x, missing_y = max(width - image.width, 0), max(height - image.height, 0)
    padded = ImageOps.expand(
        image,
        (missing_x // 2, missing_y // 2, (missing_x + 1) // 2, (missing_y + 1) // 2),
        fill=0,
    )
    left, top = round((padded.width - width) / 2), round((padded.height - height) / 2)
    expected = np.asarray(padded)[top : top + height, left : left + width]
    cropped = CenterCrop(size)(image)
    assert cropped.mode == mode
    np.testing.assert_array_equal(np.asarray(cropped), expected)


def test_to_tensor_has_torchs_default_dtype():
    torch.set_default_dtype(torch.float64)
    try:
        assert ToTensor()(picture("RGB")).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_to_tensor_keeps_an_array_of_booleans():
    assert ToTensor()(np.ones((2, 3), bool)).dtype == torch.bool


def test_to_tensor_of_a_picture_of_one_bit_is_0_or_1():
    assert set(ToTensor()(picture("1")).unique().tolist()) <= {0.0, 1.0}


@pytest.mark.parametrize(
    "tensor", [torch.zeros(3, 4, 4, dtype=torch.uint8), np.zeros((3, 4, 4), np.float32)]
)
def test_normalize_of_integers_or_arrays_is_refused(tensor):
    with pytest.raises(TypeError, match=r"put ToTensor\(\) before it"):
        Normalize([0.5], [0.5])(tensor)


def test_normalize_of_a_flat_tensor_is_refused():
    with pytest.raises(ValueError, match="channels, height, width"):
        Normalize([0.5], [0.5])(torch.zeros(4, 4))


def test_normalize_takes_one_number_for_all_channels():
    assert torch.equal(Normalize(0.5, 0.5)(torch.ones(3, 2, 2)), torch.ones(3, 2, 2))


def test_resize_to_three_sizes_is_refused():
    with pytest.raises(ValueError, match="one or two sizes"):
        Resize((1, 2, 3))
