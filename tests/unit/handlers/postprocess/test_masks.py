"""mask makes PNG files in the size of the picture that was sent."""

import cv2
import numpy as np
import pytest

from ksrv.testing import load
from tests.support.images import files

RANDOM = np.random.default_rng(9)


def decoded(found):
    return [cv2.imdecode(np.frombuffer(one, np.uint8), cv2.IMREAD_UNCHANGED) for one in found]


def bilinear(mask, height, width):
    """Enlarge by loops: pixels have their centres at .5, and the border is repeated."""
    made = np.zeros((height, width))
    for y in range(height):
        for x in range(width):
            down = min(max((y + 0.5) * mask.shape[0] / height - 0.5, 0), mask.shape[0] - 1)
            across = min(max((x + 0.5) * mask.shape[1] / width - 0.5, 0), mask.shape[1] - 1)
            top, left = int(down), int(across)
            bottom, right = min(top + 1, mask.shape[0] - 1), min(left + 1, mask.shape[1] - 1)
            low, high = down - top, across - left
            made[y, x] = (
                mask[top, left] * (1 - low) * (1 - high) + mask[top, right] * (1 - low) * high
                + mask[bottom, left] * low * (1 - high) + mask[bottom, right] * low * high
            )  # fmt: skip
    return made


@pytest.mark.parametrize("shape", [(2, 5, 7), (2, 1, 5, 7), (2, 5, 7, 1)])
def test_scores_become_grey_levels(answer, shape):
    scores = RANDOM.uniform(-0.2, 1.2, shape).astype(np.float32)
    found = answer("postprocess: [{mask: {}}]", m=scores)
    flat = scores.reshape(2, 5, 7)
    for picture, row in zip(decoded(found["m"]), flat, strict=True):
        assert picture.dtype == np.uint8
        np.testing.assert_array_equal(picture, np.rint(np.clip(row, 0, 1) * np.float32(255)))


def test_threshold_gives_black_and_white(answer):
    scores = np.float32([[[0.4, 0.6, np.nan], [0.5, -3, 7]]])
    [picture] = decoded(answer("postprocess: [{mask: {threshold: 0.5}}]", m=scores)["m"])
    assert picture.tolist() == [[0, 255, 0], [255, 0, 255]]


def test_classes_stay_numbers(answer):
    scores = RANDOM.normal(size=(2, 4, 6, 5)).astype(np.float32)
    found = answer("postprocess: [{argmax: {axis: 1}}, {mask: {of: class}}]", s=scores)
    assert list(found) == ["class", "score"]
    for picture, row in zip(decoded(found["class"]), scores, strict=True):
        np.testing.assert_array_equal(picture, row.argmax(axis=0))


HANDLER = """
import numpy as np


def inference(image, batch):
    return {"m": np.stack([np.load("SCORES")] * batch.rows)}
"""


def served(tmp_path, scores, image, step, size=(32, 32)):
    np.save(tmp_path / "scores.npy", scores)
    (tmp_path / "handler.py").write_text(HANDLER.replace("SCORES", str(tmp_path / "scores.npy")))
    (tmp_path / "model.yaml").write_text(
        "handler: handler.py\nwarmup: false\n"
        f"inputs: [{{name: image, datatype: FP32, shape: [-1, {size[0]}, {size[1]}, 3],"
        f" image: {image}}}]\npostprocess: [{{mask: {step}}}]\n"
    )
    return load(tmp_path)


def test_letterbox_is_cut_off_and_enlarged(tmp_path):
    scores = RANDOM.random((16, 16)).astype(np.float32)  # half of the row's size
    with served(tmp_path, scores, "{resize: letterbox}", "{}") as model:
        [picture] = decoded(model.infer({"image": [files.png(20, 40)]})["m"])
    # 40 x 20 in 32 x 32: scale 0.8, the rows 8 to 24, which are 4 to 12 in the mask.
    wanted = bilinear(scores[4:12], 20, 40) * 255
    assert picture.shape == (20, 40)
    assert np.abs(picture - wanted).max() <= 1


def test_parts_that_a_crop_cut_off_are_0(tmp_path):
    ones = np.ones((32, 32), np.float32)
    image = "{resize: pillow, shorter_side: 32}"
    with served(tmp_path, ones, image, "{threshold: 0.5}") as model:
        [picture] = decoded(model.infer({"image": [files.png(64, 128)]})["m"])
    assert picture.shape == (64, 128)
    assert picture[:, 32:96].min() == 255
    assert not picture[:, :32].any() and not picture[:, 96:].any()


def test_mask_can_stay_in_the_size_of_the_row(tmp_path):
    ones = np.ones((8, 8), np.float32)
    with served(tmp_path, ones, "{resize: letterbox}", "{to_image: false}") as model:
        assert model.spec.outputs == ()  # the function does not say what it returns
        [picture] = decoded(model.infer({"image": [files.png(20, 40)]})["m"])
    assert picture.shape == (8, 8)


@pytest.mark.parametrize("sides", [(1, 640), (640, 1)])
def test_narrow_pictures_get_a_mask(tmp_path, sides):
    ones = np.ones((4, 4), np.float32)
    with served(tmp_path, ones, "{resize: letterbox}", "{}") as model:
        [picture] = decoded(model.infer({"image": [files.png(*sides)]})["m"])
    assert picture.shape == sides
    assert picture.min() == 255
