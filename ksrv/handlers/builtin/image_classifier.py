"""`handler: image_classifier`: the likeliest classes of each image.

Outputs, of which the first four are answered unless model.yaml declares others:

- `output`, BYTES [-1]: for each image a JSON object of the `topk` labels and their probabilities, in
  falling order, as TorchServe answers;
- `label`, BYTES [-1, k]; `class`, INT64 [-1, k]; `probability`, FP32 [-1, k]: the same as tensors;
- `probabilities`, FP32 [-1, classes]: the probabilities of all classes.

`parameters: {topk: 5}` sets k; a model with fewer classes answers with all classes. `softmax: false` is for a model
file that ends in a softmax; ksrv warns if its outputs look like probabilities. The explanation is `attributions`, FP32
in the shape of the model's input: integrated gradients of the class that the request's parameter `target` names, or of
the likeliest class.
"""

from typing import Any

import numpy as np

from ksrv.errors import InferenceError
from ksrv.handlers.batch import Batch
from ksrv.handlers.builtin import ranking
from ksrv.handlers.builtin.integrated_gradients import integrated_gradients
from ksrv.handlers.builtin.vision import VisionHandler
from ksrv.handlers.context import Context
from ksrv.model.spec import TensorSpec
from ksrv.request import Array
from ksrv.torch_interop import is_tensor


class ImageClassifier(VisionHandler):
    """Answers with labels and probabilities.

    Attributes:
        topk: How many classes an answer names.
    """

    topk: int = 5
    default_outputs = (
        TensorSpec("output", "BYTES", (-1,)),
        TensorSpec("label", "BYTES", (-1, -1)),
        TensorSpec("class", "INT64", (-1, -1)),
        TensorSpec("probability", "FP32", (-1, -1)),
    )
    optional_outputs = (TensorSpec("probabilities", "FP32", (-1, -1)),)

    def initialize(self, context: Context) -> None:
        """Load the model and read `topk`.

        Raises:
            ValueError: `topk` is no positive whole number.
        """
        super().initialize(context)
        topk = context.parameters.get("topk", self.topk)
        if isinstance(topk, bool) or not isinstance(topk, int) or topk < 1:
            raise ValueError(f"parameters.topk is a positive whole number, not {topk!r}")
        self.topk = topk

    def postprocess(self, outputs: Any) -> dict[str, Any]:
        """Rank the classes of each row."""
        probabilities = self.softmax(ranking.primary_output(outputs))
        best, classes = ranking.topk(probabilities, min(self.topk, probabilities.shape[1]))
        return self.select(
            {
                "output": lambda: [
                    {self.label(index): value for value, index in zip(*row, strict=True)}
                    for row in zip(best.tolist(), classes.tolist(), strict=True)
                ],
                "label": lambda: self._labels(classes),
                "class": lambda: classes,
                "probability": lambda: best,
                "probabilities": lambda: probabilities,
            }
        )

    def explain(self, batch: Batch, inputs: Any) -> dict[str, Any]:
        """Return integrated gradients.

        Raises:
            InferenceError: The model has no gradients, or a request's `target` is no class of it.
        """
        if not is_tensor(inputs):
            raise InferenceError("this model has no gradients to explain with")
        import torch

        with torch.no_grad():
            ranked = ranking.primary_output(self.inference(inputs))
        targets = self._targets(batch, ranked.argmax(dim=1).tolist(), ranked.shape[1])
        return {"attributions": integrated_gradients(self.inference, inputs, targets)}

    def _targets(self, batch: Batch, likeliest: list[int], classes: int) -> list[int]:
        targets = likeliest
        for request in batch.requests:
            target = request.parameters.get("target")
            if target is None:
                continue
            if isinstance(target, bool) or not isinstance(target, int) or not 0 <= target < classes:
                batch.fail(
                    request.slice.start, f"the parameter target is a class from 0 to {classes - 1}"
                )
                continue
            for row in range(request.slice.start, request.slice.stop):
                targets[row] = target
        return targets

    def _labels(self, classes: Array) -> Array:
        labels = np.empty(classes.shape, dtype=object)
        for place, index in np.ndenumerate(classes):
            labels[place] = self.label(int(index))
        return labels
