"""`handler: object_detector`: the boxes whose score reaches a threshold.

Outputs, unless model.yaml declares others:

- `output`, BYTES [-1]: for each image the list of JSON objects `{label: [x1, y1, x2, y2], "score": s}` that
  TorchServe's detector returns;
- `boxes`, FP32 [-1, n, 4]; `class`, INT64 [-1, n]; `score`, FP32 [-1, n]; `count`, INT32 [-1]: the
  same as tensors. n is the largest number of boxes in the batch; after its `count` boxes a row is filled with
  zeros, and class -1.

`parameters: {threshold: 0.5}` sets the threshold. The model takes a batch of RGB images in their original
size, values from 0 to 1, or a list of images if its signature asks for that. It returns `boxes`, `labels` and `scores`
for each image. All images of a batch have the same size.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ksrv.handlers.builtin import ranking
from ksrv.handlers.builtin.vision import VisionHandler
from ksrv.handlers.context import Context
from ksrv.model.spec import Dimension, ImageSpec, TensorSpec
from ksrv.request import Array

PARTS = ("boxes", "labels", "scores")


class ObjectDetector(VisionHandler):
    """Answers with labelled boxes.

    Attributes:
        threshold: Boxes with lower scores are left out.
    """

    threshold: float = 0.5
    image = ImageSpec(
        color="RGB",
        channels="convert",
        exif="apply",
        resize="none",
        scale=255.0,
        arithmetic="exact",
        model_layout="NCHW",
    )
    default_outputs = (
        TensorSpec("output", "BYTES", (-1,)),
        TensorSpec("boxes", "FP32", (-1, -1, 4)),
        TensorSpec("class", "INT64", (-1, -1)),
        TensorSpec("score", "FP32", (-1, -1)),
        TensorSpec("count", "INT32", (-1,)),
    )

    _takes_list = False  # whether the model takes a list of images

    def initialize(self, context: Context) -> None:
        """Load the model and read `threshold`.

        Raises:
            ValueError: `threshold` is no number.
        """
        super().initialize(context)
        threshold = context.parameters.get("threshold", self.threshold)
        if isinstance(threshold, bool) or not isinstance(threshold, (int, float)):
            raise ValueError(f"parameters.threshold is a number, not {threshold!r}")
        self.threshold = float(threshold)
        # Scripted models have a schema of `forward`; its argument 0 is `self`.
        schema = getattr(getattr(self.model, "forward", None), "schema", None)
        self._takes_list = schema is not None and "List[Tensor]" in str(schema.arguments[1].type)

    def image_size(self) -> tuple[Dimension, Dimension]:
        """Images are not resized."""
        return -1, -1

    def inference(self, /, *inputs: Any, **named: Any) -> Any:
        """Run the model on the images, as a list if its signature asks for a list."""
        if self._takes_list and len(inputs) == 1:
            return super().inference(list(inputs[0]), **named)
        return super().inference(*inputs, **named)

    def postprocess(self, outputs: Any) -> dict[str, Any]:
        """Keep the boxes that reach the threshold."""
        found = [self._kept(one) for one in self._images(outputs)]
        most = max((len(scores) for _, _, scores in found), default=0)
        return self.select(
            {
                "output": lambda: [self._json(*one) for one in found],
                "boxes": lambda: _padded([one[0] for one in found], (most, 4), np.float32, 0),
                "class": lambda: _padded([one[1] for one in found], (most,), np.int64, -1),
                "score": lambda: _padded([one[2] for one in found], (most,), np.float32, 0),
                "count": lambda: np.array([len(one[2]) for one in found], np.int32),
            }
        )

    def _images(self, outputs: Any) -> list[Mapping[str, Any]]:
        """Return the objects of each image: the model returns a list with a mapping per image, or a mapping of
        tensors.
        """
        if isinstance(outputs, tuple) and len(outputs) == 2:
            outputs = outputs[1]  # scripted detectors give their losses first
        if isinstance(outputs, Mapping):
            parts = [ranking.to_array(outputs[name]) for name in PARTS]
            # Scores without a batch dimension: these are the tensors of a single image.
            if parts[2].ndim == 1:
                return [dict(zip(PARTS, parts, strict=True))]
            return [dict(zip(PARTS, row, strict=True)) for row in zip(*parts, strict=True)]
        return list(outputs)

    def _kept(self, found: Mapping[str, Any]) -> tuple[Array, Array, Array]:
        """Return the boxes, classes and scores of an image that reach the threshold."""
        boxes, labels, scores = (ranking.to_array(found[name]) for name in PARTS)
        kept = scores >= np.float32(self.threshold)
        return boxes[kept], labels[kept], scores[kept]

    def _json(self, boxes: Array, labels: Array, scores: Array) -> list[dict[str, Any]]:
        rows = zip(boxes.tolist(), labels.tolist(), scores.tolist(), strict=True)
        return [{self.label(int(label)): box, "score": score} for box, label, score in rows]


def _padded(parts: list[Array], shape: tuple[int, ...], dtype: Any, filler: float) -> Array:
    """Return one array with a row for each part, filled up to the shape of a row."""
    padded = np.full((len(parts), *shape), filler, dtype)
    for row, part in enumerate(parts):
        padded[row, : len(part)] = part
    return padded
