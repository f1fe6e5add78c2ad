"""A model as its metadata and its configuration describe it."""

from ksrv.model.spec import ImageSpec, ModelSpec, TensorSpec

_IMAGE = ImageSpec(color="RGB", resize="pillow", shorter_side=256, scale=255.0, mean=(0.5,) * 3)
CLASSIFIER = ModelSpec(
    "cats",
    "3",
    "onnx",
    inputs=(
        TensorSpec("image", "FP32", (-1, 224, (100, 200), 3), _IMAGE),
        TensorSpec("text", "BYTES", (-1,)),
    ),
    outputs=(TensorSpec("p", "BF16", (-1, 1000)),),
    max_batch_size=8,
    parameters={"top": 5, "name": "n", "list": [1]},
)
