"""The image handlers of TorchServe: `ts.torch_handler.vision_handler` and its three subclasses.

The numbers are TorchServe's on the same model and file. Beyond it, grey, palette and RGBA files are
read as RGB, a model with fewer than `topk` classes answers with all of them, and explanations need no
captum.
"""

import base64
from typing import Any

import numpy as np

from ksrv.handlers.gradients import integrated_gradients
from ksrv.torchserve.base_handler import BaseHandler
from ksrv.torchserve.micro_batching import MicroBatching
from ksrv.torchserve.prediction import map_class_to_label
from ksrv.torchserve.transforms import CenterCrop, Compose, Normalize, Pixels, Resize, ToTensor

MEAN = [0.485, 0.456, 0.406]
STD = [0.229, 0.224, 0.225]


def decode_image(file: bytes | bytearray | memoryview) -> Pixels:
    """Decode an image file to RGB pixels as Pillow's `.convert("RGB")` would; EXIF is ignored.

    Raises:
        ValueError: The bytes are no image that can be read.
    """
    import cv2

    if len(file) == 0:
        raise ValueError("the image is empty")
    flags = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION
    pixels = cv2.imdecode(np.frombuffer(file, np.uint8), flags)
    if pixels is None:
        raise ValueError("the bytes are no image that can be decoded")
    return np.asarray(pixels, np.uint8)


class VisionHandler(BaseHandler):
    """Decodes the image of each row, applies `image_processing`, stacks.

    A file in a batch that cannot be read fails its own request, where TorchServe fails the batch.
    """

    image_processing: Any = None

    def preprocess(self, data: Any) -> Any:
        import torch

        images: list[Any] = []
        errors: dict[int, Exception] = {}
        for index, row in enumerate(data):
            try:
                images.append(self._image(row))
            except Exception as error:  # noqa: BLE001  decoders and transforms raise what they like
                images.append(None)
                errors[index] = error
        if errors:
            self._fail_rows(images, errors)
        return torch.stack(images).to(self.device)

    def _fail_rows(self, images: list[Any], errors: dict[int, Exception]) -> None:
        """Fail the requests of rows without an image, and have blank images stand in for those."""
        import torch

        sound = next((image for image in images if image is not None), None)
        fail = getattr(self.context, "fail", None)
        # A part of a batch does not know the numbers that its rows have in the batch.
        if sound is None or fail is None or isinstance(self.handle, MicroBatching):
            raise next(iter(errors.values()))
        for index, error in errors.items():
            fail(index, error)
            images[index] = torch.zeros_like(sound)

    def _image(self, row: Any) -> Any:
        import torch

        value = row.get("data") or row.get("body")
        if isinstance(value, str):
            value = base64.b64decode(value)
        if isinstance(value, (bytes, bytearray, memoryview)):
            return self.image_processing(decode_image(value))
        return torch.FloatTensor(value)

    def get_insights(self, tensor_data: Any, _: Any, target: Any = 0) -> list[Any]:
        """Return the integrated gradients of a class for each image, as nested lists."""
        attributions = integrated_gradients(
            self.model, tensor_data, [int(target)] * len(tensor_data)
        )
        return attributions.tolist()


class ImageClassifier(VisionHandler):
    """Answers with the labels and probabilities of the `topk` likeliest classes."""

    topk = 5
    image_processing = Compose([Resize(256), CenterCrop(224), ToTensor(), Normalize(MEAN, STD)])

    def set_max_result_classes(self, topk: int) -> None:
        self.topk = topk

    def get_max_result_classes(self) -> int:
        return self.topk

    def postprocess(self, data: Any) -> list[Any]:
        import torch

        probabilities = torch.nn.functional.softmax(data, dim=1)
        count = min(self.topk, probabilities.shape[1])
        best, classes = torch.topk(probabilities, count, dim=1)
        return map_class_to_label(best.tolist(), self.mapping, classes.tolist())


class ImageSegmenter(VisionHandler):
    """Answers with the likeliest class of each pixel and its probability, [height][width][2]."""

    image_processing = Compose([Resize(256), CenterCrop(224), ToTensor(), Normalize(MEAN, STD)])

    def postprocess(self, data: Any) -> list[Any]:
        import torch

        probabilities = torch.nn.functional.softmax(data["out"], dim=1)
        best, classes = torch.max(probabilities, dim=1)
        rows: list[Any] = torch.stack([classes.type(best.dtype), best], dim=3).tolist()
        return rows


class ObjectDetector(VisionHandler):
    """Answers with the boxes whose score reaches `threshold`."""

    threshold = 0.5
    image_processing = Compose([ToTensor()])

    def postprocess(self, data: Any) -> list[Any]:
        return [self._boxes(found) for found in data]

    def _boxes(self, found: dict[str, Any]) -> list[dict[str, Any]]:
        kept = found["scores"] >= self.threshold
        boxes = found["boxes"][kept].tolist()
        scores = found["scores"][kept].tolist()
        labels = [[label] for label in found["labels"][kept].tolist()]
        named = map_class_to_label([[box] for box in boxes], self.mapping, labels)
        return [{**entry, "score": score} for entry, score in zip(named, scores, strict=True)]
