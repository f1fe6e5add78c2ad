"""`image_classifier` prepares images of every kind exactly as Pillow and torch do, bit for bit."""

import io
import json

import numpy as np
import pytest

from ksrv.images.preparer import ImagePreparer
from ksrv.limits import Limits
from ksrv.request import ExecutorInputs, RequestPart, Tensor
from tests.support.images import files

torch = pytest.importorskip("torch")
Image = pytest.importorskip("PIL.Image")
ImageOps = pytest.importorskip("PIL.ImageOps")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


IMAGES = {
    "rgb png": files.png(480, 640),
    "rgb jpeg": files.jpeg(720, 720),
    "progressive 4:4:4": files.jpeg(512, 333, quality=95, subsampling=0, progressive=True),
    "small": files.png(60, 100),
    "tall": files.png(1000, 33),
    "already 256": files.png(300, 256),
    "grey png": files.png(300, 400, "L"),
    "grey jpeg": files.jpeg(420, 301, "L"),
    "palette": files.png(400, 320, "P"),
    "one bit": files.png(280, 320, "1"),
    "opaque rgba": files.png(260, 500, "RGBA"),
    "orientation 3": files.oriented(500, 300, 3),
    "orientation 6": files.oriented(280, 500, 6),
    "orientation 7": files.oriented(333, 280, 7),
}


def reference(data):
    """Pillow and torch, as torchvision's transforms use them."""
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
    width, height = image.size
    short, long = sorted((width, height))
    size = int(256 * long / short)
    new = (256, size) if width <= height else (size, 256)
    if new != image.size:
        image = image.resize(new, Image.Resampling.BILINEAR)
    left, top = round((new[0] - 224) / 2.0), round((new[1] - 224) / 2.0)
    pixels = np.array(image.crop((left, top, left + 224, top + 224)))
    tensor = torch.from_numpy(pixels).permute(2, 0, 1).float().div(255)
    mean = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
    std = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
    return tensor.sub(mean).div(std)


@pytest.fixture
def runner(tmp_path, loaded):
    model = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten()).eval()
    torch.jit.script(model).save(str(tmp_path / "m.pt"))
    (tmp_path / "model.yaml").write_text("handler: image_classifier\nmodel: m.pt\n")
    return loaded(tmp_path)


def prepared(runner, images):
    preparer = ImagePreparer(runner.spec.inputs[0], Limits())
    out = np.empty(preparer.check(images, len(images)).shape, np.float32)
    assert preparer.prepare(images, out) == [None] * len(images)
    return out


@pytest.mark.parametrize("name", IMAGES)
def test_prepared_pixels_equal_pillows(runner, name):
    row = prepared(runner, [IMAGES[name]])[0]
    np.testing.assert_array_equal(row.transpose(2, 0, 1), reference(IMAGES[name]).numpy())


def test_mixed_batch_equals_the_reference(runner):
    array = prepared(runner, list(IMAGES.values()))
    requests = [RequestPart(slice(row, row + 1)) for row in range(len(array))]
    tensor = Tensor("image", "FP32", array.shape, array)
    answer = runner.run(ExecutorInputs({"image": tensor}, len(array), requests))
    [output] = [one for one in answer.tensors if one.name == "output"]
    stacked = torch.stack([reference(data) for data in IMAGES.values()])
    with torch.inference_mode():
        want = torch.nn.functional.adaptive_avg_pool2d(stacked, 2).flatten(1).softmax(dim=1)
    for text, probabilities in zip(output.data, want, strict=True):
        got = json.loads(text)
        best = probabilities.topk(5)
        assert list(got) == [str(index) for index in best.indices.tolist()]
        np.testing.assert_allclose(list(got.values()), best.values, atol=1e-6)
