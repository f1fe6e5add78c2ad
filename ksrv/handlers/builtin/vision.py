"""The base of the built-in image handlers: the default input, prepared as models for ImageNet expect it.

ksrv decodes and prepares the images in the batch before the handler sees them; `IMAGENET` says how. model.yaml may
declare another input instead.
"""

from dataclasses import replace

from ksrv.handlers.builtin.optional_outputs import OptionalOutputsHandler
from ksrv.model.spec import Dimension, ImageSpec, ModelSpec, TensorSpec

INPUT = "image"
SIDE = 224
SHORTER_SIDE = 256

# The sizes to which an image can be cropped after it was resized to SHORTER_SIDE.
_CROPS = range(1, SHORTER_SIDE + 1)

IMAGENET = ImageSpec(
    color="RGB",
    channels="convert",
    exif="apply",
    resize="pillow",
    shorter_side=SHORTER_SIDE,
    scale=255.0,
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
    arithmetic="exact",
    model_layout="NCHW",
)


class VisionHandler(OptionalOutputsHandler):
    """An image handler whose default input is one RGB image for each row."""

    image: ImageSpec = IMAGENET

    def declare(self, spec: ModelSpec) -> ModelSpec:
        """Declare the image input and the outputs that model.yaml leaves open.

        Args:
            spec: The inputs and outputs that model.yaml declares.
        """
        spec = super().declare(spec)
        if not spec.inputs:
            shape = (-1, *self.image_size(), 3)
            spec = replace(spec, inputs=(TensorSpec(INPUT, "FP32", shape, self.image),))
        return spec

    def image_size(self) -> tuple[Dimension, Dimension]:
        """Return height and width of the images that the model reads.

        If the model file has a fixed size, as ONNX files have, and it is at most `SHORTER_SIDE`, that size is used;
        otherwise `SIDE`.
        """
        loaded = self.context.loaded
        if loaded is not None and len(loaded.inputs) == 1 and len(loaded.inputs[0].shape) == 4:
            height, width = loaded.inputs[0].shape[2:]
            if height in _CROPS and width in _CROPS:
                return height, width
        return SIDE, SIDE
