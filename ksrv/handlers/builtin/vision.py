"""The base of the built-in image handlers: the declared input, and ImageNet's numbers.

The images themselves are decoded and prepared by ksrv, straight into the batch, before the handler
sees them: the `image:` section below says how. model.yaml may declare another input instead.
"""

from dataclasses import replace

from ksrv.handlers.builtin.optional_outputs import OptionalOutputsHandler
from ksrv.model.spec import Dimension, ImageSpec, ModelSpec, TensorSpec

INPUT = "image"
SIDE = 224
SHORTER_SIDE = 256

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
    """An image handler; the default input is one RGB image, as ImageNet's models want it."""

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

        The model file's own size holds where it names one (ONNX files do), as long as the images'
        shorter side is not smaller.
        """
        loaded = self.context.loaded
        if loaded is not None and len(loaded.inputs) == 1 and len(loaded.inputs[0].shape) == 4:
            height, width = loaded.inputs[0].shape[2:]
            if height in _CROPS and width in _CROPS:
                return height, width
        return SIDE, SIDE
