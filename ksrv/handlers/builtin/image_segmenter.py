"""`handler: image_segmenter`: the likeliest class of each pixel, and its probability.

Outputs, of which the first two are answered unless model.yaml declares others:

- `class`, INT32 [-1, H, W], and `probability`, FP32 [-1, H, W];
- `output`, BYTES [-1]: for each image the nested JSON list [H][W][class, probability] that
  TorchServe answers, which is some hundred times larger.

The model gives scores [rows, classes, H, W], alone or as the entry `out` of a mapping. `parameters: {softmax: false}`
is for a model file that ends in a softmax.
"""

from typing import Any

import numpy as np

from ksrv.handlers.builtin import ranking
from ksrv.handlers.builtin.vision import VisionHandler
from ksrv.model.spec import TensorSpec


class ImageSegmenter(VisionHandler):
    """Answers with the class and the probability of each pixel."""

    default_outputs = (
        TensorSpec("class", "INT32", (-1, -1, -1)),
        TensorSpec("probability", "FP32", (-1, -1, -1)),
    )
    optional_outputs = (TensorSpec("output", "BYTES", (-1,)),)

    def postprocess(self, outputs: Any) -> dict[str, Any]:
        """Find the likeliest class of each pixel."""
        probabilities = self.softmax(ranking.primary_output(outputs, "out"))
        probability, classes = ranking.argmax(probabilities)
        return self.select(
            {
                "class": lambda: classes,
                "probability": lambda: probability,
                "output": lambda: np.stack(
                    [classes.astype(probability.dtype), probability], axis=-1
                ).tolist(),
            }
        )
