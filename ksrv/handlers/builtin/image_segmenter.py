"""`handler: image_segmenter`: the likeliest class of each pixel, and its probability.

Outputs; ksrv answers with the first two unless model.yaml declares others:

- `class`, INT32 [-1, H, W], and `probability`, FP32 [-1, H, W];
- `output`, BYTES [-1]: for each image the nested JSON list [H][W][class, probability] that
  TorchServe answers, which is some hundred times larger.

The model gives scores [rows, classes, H, W], alone or as the entry `out` of a mapping. `parameters: {softmax: false}`
is for a model file that ends in a softmax.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ksrv.handlers.builtin.preset import Preset
from ksrv.model.postprocess import Argmax, Step
from ksrv.model.spec import TensorSpec
from ksrv.request import Array


class ImageSegmenter(Preset):
    """Answers with the class and the probability of each pixel."""

    default_outputs = (
        TensorSpec("class", "INT32", (-1, -1, -1)),
        TensorSpec("probability", "FP32", (-1, -1, -1)),
    )
    optional_outputs = (TensorSpec("output", "BYTES", (-1,)),)

    def steps(self) -> tuple[Step, ...]:
        """Return a softmax and `argmax`."""
        return (*super().steps(), Argmax(of="probabilities", axis=1))

    def objects(self, found: Mapping[str, Array]) -> list[Any]:
        """Return the class and the probability of each pixel as nested lists."""
        nested: list[Any] = np.stack([found["class"], found["score"]], axis=-1).tolist()
        return nested
