"""`handler: image_classifier`: the likeliest classes of each image.

Outputs; ksrv answers with the first four unless model.yaml declares others:

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

from ksrv.errors import InferenceError
from ksrv.handlers.batch import Batch
from ksrv.handlers.builtin.integrated_gradients import integrated_gradients
from ksrv.handlers.builtin.preset import Preset, parameter, ranked
from ksrv.handlers.postprocess.scores import primary_output
from ksrv.model.postprocess import Step, TopK
from ksrv.torch_interop import is_tensor


class ImageClassifier(Preset):
    """Answers with labels and probabilities.

    Attributes:
        topk: How many classes an answer names.
    """

    topk: int = 5
    default_outputs = ranked(-1)

    def steps(self) -> tuple[Step, ...]:
        """Return a softmax and `top_k`."""
        self.topk = parameter(self.context.parameters, "topk", self.topk)
        return (*super().steps(), TopK(of="probabilities", k=self.topk))

    def explain(self, batch: Batch, inputs: Any) -> dict[str, Any]:
        """Return integrated gradients.

        Raises:
            InferenceError: The model has no gradients, or a request's `target` is not a class of it.
        """
        if not is_tensor(inputs):
            raise InferenceError("this model has no gradients to explain with")
        import torch

        with torch.no_grad():
            ranked = primary_output(self.inference(inputs))
        targets = self._targets(batch, ranked.argmax(dim=1).tolist(), ranked.shape[1])
        return {"attributions": integrated_gradients(self.inference, inputs, targets)}

    def _targets(self, batch: Batch, targets: list[int], classes: int) -> list[int]:
        """Return the class to explain of each row: the likeliest, unless the request names another."""
        for request in batch.requests:
            target = request.parameters.get("target")
            if type(target) is int and 0 <= target < classes:
                targets[request.slice] = [target] * request.rows
            elif target is not None:
                batch.fail(
                    request.slice.start, f"the parameter target is a class from 0 to {classes - 1}"
                )
        return targets
