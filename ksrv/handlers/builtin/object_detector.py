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
from msgspec import structs

from ksrv.handlers.builtin.preset import IMAGENET, Preset, parameter
from ksrv.handlers.context import Context
from ksrv.handlers.postprocess.regions import padded
from ksrv.handlers.postprocess.scores import to_array
from ksrv.model.postprocess import Step, Threshold
from ksrv.model.spec import Dimension, TensorSpec
from ksrv.request import Array

PARTS = ("scores", "labels", "boxes")


class ObjectDetector(Preset):
    """Answers with labelled boxes.

    Attributes:
        threshold: Boxes with lower scores are left out.
    """

    threshold: float = 0.5
    image = structs.replace(IMAGENET, resize="none", shorter_side=None, mean=(), std=())
    default_outputs = (
        TensorSpec("output", "BYTES", (-1,)),
        TensorSpec("boxes", "FP32", (-1, -1, 4)),
        TensorSpec("class", "INT64", (-1, -1)),
        TensorSpec("score", "FP32", (-1, -1)),
        TensorSpec("count", "INT32", (-1,)),
    )
    optional_outputs = ()
    made = (*PARTS, "count")
    renamed: Mapping[str, str] = {"class": "labels", "score": "scores"}

    _takes_list = False  # whether the model takes a list of images

    def steps(self) -> tuple[Step, ...]:
        """Return `threshold`."""
        least = parameter(self.context.parameters, "threshold", float(self.threshold))
        return (Threshold(of="scores", also=PARTS[1:], least=least),)

    def initialize(self, context: Context) -> None:
        """Load the model."""
        super().initialize(context)
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

    def named_outputs(self, outputs: Any) -> dict[str, Array]:
        """Return the scores, labels and boxes of all images: the model returns a list with a mapping per image, or a
        mapping of tensors.
        """
        if isinstance(outputs, tuple) and len(outputs) == 2:
            outputs = outputs[1]  # scripted detectors give their losses first
        if isinstance(outputs, Mapping):
            arrays = {name: to_array(outputs[name]) for name in PARTS}
            # Scores without a batch dimension: these are the tensors of a single image.
            rows = None if arrays["scores"].ndim == 1 else zip(*arrays.values(), strict=True)
            outputs = [dict(zip(PARTS, row, strict=True)) for row in rows] if rows else [arrays]
        scores, labels, boxes = ([to_array(image[name]) for image in outputs] for name in PARTS)
        return {
            "scores": padded(scores, np.float32, filler=np.nan),  # reaches no threshold
            "labels": padded(labels, np.int64),
            "boxes": padded(boxes, np.float32, (4,)),
        }

    def objects(self, found: Mapping[str, Array]) -> list[Any]:
        """Return the list of the boxes of each image: an object of the label, the box and the score."""
        parts = (self.label_classes(found), found["boxes"], found["score"], found["count"])
        rows = zip(*(part.tolist() for part in parts), strict=True)
        return [
            [{label: box, "score": score} for label, box, score in zip(*row, strict=True)][:count]
            for *row, count in rows
        ]
