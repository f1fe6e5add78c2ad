"""The image handlers of TorchServe: `ts.torch_handler.vision_handler` and its three subclasses.

For the same model and file, answers equal TorchServe's. Unlike TorchServe, ksrv reads grey, palette and RGBA files as
RGB, answers with all classes if a model has fewer than `topk`, and explains without captum.

The built-in `image_processing` gets arrays that cv2 decoded. An `image_processing` that a subclass sets gets the image
as Pillow opens it, as in TorchServe. In both cases the header of the file is checked against the server's limits first,
and the memory for decoding counts in the memory budget meanwhile.
"""

import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from ksrv._native.images.image_header import Header
from ksrv.dialects.torchserve.api.errors import PredictionException
from ksrv.dialects.torchserve.api.handlers.base_handler import BaseHandler
from ksrv.dialects.torchserve.api.handlers.micro_batching import MicroBatching
from ksrv.dialects.torchserve.api.labels import map_class_to_label
from ksrv.dialects.torchserve.base64_text import decoded, without_base64
from ksrv.dialects.torchserve.shims.transforms import (
    CenterCrop,
    Compose,
    Normalize,
    Pixels,
    Resize,
    ToTensor,
)
from ksrv.handlers.builtin.integrated_gradients import integrated_gradients
from ksrv.images import decode_memory, opencv
from ksrv.images.decode_limits import LimitPassed, checked_header, decoder_bytes, process_limits
from ksrv.images.decode_memory import NoRoom, TooLarge
from ksrv.limits import show_limit

MEAN = [0.485, 0.456, 0.406]
STD = [0.229, 0.224, 0.225]
CLASSIFIED = Compose([Resize(256), CenterCrop(224), ToTensor(), Normalize(MEAN, STD)])
"""The built-in `image_processing` of classifiers and segmenters, with the mean and deviation of ImageNet."""
DETECTED = Compose([ToTensor()])
"""The built-in `image_processing` of object detectors."""

Count = Callable[[Header], None]
"""Counts the pixels of an image; raises LimitPassed if its request has too many."""


def decode_image(file: bytes | bytearray | memoryview) -> Pixels:
    """Decode an image file to RGB pixels as Pillow's `.convert("RGB")` would; EXIF is ignored.

    Raises:
        ValueError: The bytes are not an image that can be read.
        PredictionException: The image is above a limit, or the budget has no room for its pixels.
    """
    view = memoryview(file)
    with _admitted(view):
        return _rgb(view)


def _rgb(file: memoryview) -> Pixels:
    cv2 = opencv.load()
    pixels: Pixels = _decoded(file, cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION)
    return pixels


def _decoded(file: memoryview, flags: int) -> Any:
    pixels = opencv.decode(file, flags)
    if pixels is None:
        raise ValueError(
            "the bytes are not an image that can be decoded; expected a file of an image"
        )
    return pixels


def _as_opened(file: memoryview) -> Any:
    """Return a file as Pillow opens it, or an array of the file's channels if Pillow is missing."""
    try:
        from PIL import Image
    except ModuleNotFoundError:
        cv2 = opencv.load()
        pixels = _decoded(file, cv2.IMREAD_UNCHANGED)
        if pixels.ndim == 2:
            return pixels
        alpha = pixels.shape[2] == 4
        return cv2.cvtColor(pixels, cv2.COLOR_BGRA2RGBA if alpha else cv2.COLOR_BGR2RGB)
    return Image.open(io.BytesIO(file))


@contextmanager
def _admitted(file: memoryview, count: Count | None = None) -> Iterator[None]:
    """Check an image's header against the limits, and count the decoder's memory in the budget inside the block.

    Args:
        count: Called with the header before the memory is counted.

    Raises:
        ValueError: The bytes are not an image that can be read.
        PredictionException: The image is above a limit, or the budget has no room for its pixels.
    """
    try:
        header = checked_header(file, process_limits())
        if count is not None:
            count(header)
        nbytes = decoder_bytes(header)
        decode_memory.take(nbytes)
    except LimitPassed as error:
        raise PredictionException(f"the image {error}", 400) from None
    except TooLarge as error:
        raise PredictionException(f"the image {error}", 413) from None
    except NoRoom as error:
        raise PredictionException(f"the image {error}", 503) from None
    except ValueError as error:
        raise ValueError(f"the image {error}") from None
    try:
        yield
    finally:
        decode_memory.give_back(nbytes)


class _RequestPixels:
    """Counts the pixels of each request of a batch, because a request may own several rows.

    Args:
        ids: The id of each row's request; a row without an id counts as a request.
    """

    def __init__(self, ids: Mapping[int, str]) -> None:
        self._ids = ids
        self._pixels: dict[object, int] = {}

    def add(self, row: int, header: Header) -> None:
        """Count a row's image.

        Raises:
            LimitPassed: The images of the row's request have too many pixels together.
        """
        request = self._ids.get(row, row)
        total = self._pixels.get(request, 0) + header.width * header.height
        self._pixels[request] = total
        most = process_limits().request_pixels
        if total > most:
            raise LimitPassed(
                f"and those before it in its request have {total} pixels together, above the"
                f" {show_limit('request_pixels', most)}"
            )


class VisionHandler(BaseHandler):
    """Decodes the image of each row, applies `image_processing`, and stacks the tensors.

    A file in a batch that cannot be read fails only its request; TorchServe would fail the batch.
    """

    image_processing: Any = None

    def preprocess(self, data: Any) -> Any:
        import torch

        images: list[Any] = []
        errors: dict[int, Exception] = {}
        # A micro-batch does not know which rows of the batch it has, so it cannot look up their ids.
        whole = not isinstance(self.handle, MicroBatching)
        ids = (getattr(self.context, "request_ids", None) or {}) if whole else {}
        pixels = _RequestPixels(ids)
        for index, row in enumerate(data):
            try:
                images.append(self._image(row, partial(pixels.add, index)))
            except Exception as error:  # noqa: BLE001  decoders and transforms raise any exception
                images.append(None)
                errors[index] = error
        if errors:
            self._fail_rows(images, errors)
        return torch.stack(images).to(self.device)

    def _fail_rows(self, images: list[Any], errors: dict[int, Exception]) -> None:
        """Fail the requests of rows without an image, and put blank images in those rows."""
        import torch

        sound = next((image for image in images if image is not None), None)
        fail = getattr(self.context, "fail", None)
        # A micro-batch does not know which rows of the batch it has, so it can only fail as a whole.
        if sound is None or fail is None or isinstance(self.handle, MicroBatching):
            raise next(iter(errors.values()))
        for index, error in errors.items():
            fail(index, error)
            images[index] = torch.zeros_like(sound)

    def _image(self, row: Any, count: Count) -> Any:
        import torch

        value = row.get("data") or row.get("body")
        if isinstance(value, dict):
            value = without_base64(value)
        elif isinstance(value, str):
            value = decoded(value)
        if not isinstance(value, (bytes, bytearray, memoryview)):
            return torch.FloatTensor(value)
        built_in = self.image_processing is CLASSIFIED or self.image_processing is DETECTED
        file = memoryview(value)
        with _admitted(file, count):
            return self.image_processing(_rgb(file) if built_in else _as_opened(file))

    def get_insights(self, tensor_data: Any, _: Any, target: Any = 0) -> list[Any]:
        """Return the integrated gradients of a class for each image, as nested lists."""
        attributions = integrated_gradients(
            self.model, tensor_data, [int(target)] * len(tensor_data)
        )
        return attributions.tolist()


class ImageClassifier(VisionHandler):
    """Answers with the labels and probabilities of the `topk` likeliest classes."""

    topk = 5
    image_processing = CLASSIFIED

    def set_max_result_classes(self, topk: int) -> None:
        self.topk = topk

    def get_max_result_classes(self) -> int:
        return self.topk

    def postprocess(self, data: Any) -> list[Any]:
        best, classes = data.softmax(dim=1).topk(min(self.topk, data.shape[1]), dim=1)
        return map_class_to_label(best.tolist(), self.mapping, classes.tolist())


class ImageSegmenter(VisionHandler):
    """Answers with the likeliest class of each pixel and its probability, [height][width][2]."""

    image_processing = CLASSIFIED

    def postprocess(self, data: Any) -> list[Any]:
        import torch

        best, classes = data["out"].softmax(dim=1).max(dim=1)
        rows: list[Any] = torch.stack([classes.type(best.dtype), best], dim=3).tolist()
        return rows


class ObjectDetector(VisionHandler):
    """Answers with the boxes whose score reaches `threshold`."""

    threshold = 0.5
    image_processing = DETECTED

    def postprocess(self, data: Any) -> list[Any]:
        return [self._boxes(found) for found in data]

    def _boxes(self, found: dict[str, Any]) -> list[dict[str, Any]]:
        kept = found["scores"] >= self.threshold
        boxes = found["boxes"][kept].tolist()
        scores = found["scores"][kept].tolist()
        labels = [[label] for label in found["labels"][kept].tolist()]
        named = map_class_to_label([[box] for box in boxes], self.mapping, labels)
        return [{**entry, "score": score} for entry, score in zip(named, scores, strict=True)]
